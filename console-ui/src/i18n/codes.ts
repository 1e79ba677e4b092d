// The codes that the API sends and the page has words for. An unknown one is shown as it came.

export const WHYS = [
  "least_loaded",
  "fork",
  "sibling",
  "hash",
  "named",
  "not_above",
  "no_other",
  "above",
  "not_yet_back",
  "suspect",
  "stalled",
  "awaited",
  "last_turn",
  "room",
  "response",
  "affinity_off",
  "rank_ignored",
] as const;
export type Why = (typeof WHYS)[number];

export const ROOM_WHYS = ["engaged", "emptying", "open", "settling", "no_capacity", "gaps", "kept"] as const;
export type RoomWhy = (typeof ROOM_WHYS)[number];

export const CAUSES = [
  "extends",
  "first",
  "compaction",
  "tools_changed",
  "system_changed",
  "billing_line",
  "timestamp",
  "system_turn_moved",
  "history_edited",
  "evicted",
  "moved",
  "engine_restarted",
  "spilled",
  "rehomed",
  "unrouted",
  "other",
] as const;
export type Cause = (typeof CAUSES)[number];

export const CHECKS = [
  "replicas",
  "panic",
  "engine_down",
  "engine_hangs",
  "engine_starting",
  "engine_failed",
  "engine_stuck",
  "engine_crashed",
  "engine_stopping",
  "engine_stopped",
  "engine_outdated",
  "orphan",
  "keys_unreadable",
  "no_keys",
  "no_metrics",
  "stale_metrics",
  "pin_failed",
  "pin_unverified",
  "no_usage_details",
  "same_engine",
  "stalled",
  "drained",
  "restart_failed",
  "max_num_seqs",
  "affinity_off",
  "waiting_room",
  "cpu_tier",
  "context_too_large",
  "contexts_do_not_fit",
  "no_session_id",
  "prefix_changes",
  "ledger",
  "ledger_dropped",
  "data_loop",
  "console_open",
  "client_open",
] as const;
export type CheckCode = (typeof CHECKS)[number];

// Answers of the warden's own, by the code in their envelope.
export const OWN_CODES = [
  "model_not_found",
  "not_found",
  "invalid_api_key",
  "invalid_json",
  "model_missing",
  "model_invalid",
  "invalid_replica",
  "previous_response_not_found",
  "request_too_large",
  "unsupported_coding",
  "invalid_coding",
  "malformed",
  "foreign_page",
  "unknown_expectation",
  "head_too_large",
  "unknown_version",
  "invalid_request",
  "shutting_down",
  "overloaded",
] as const;
export type OwnCode = (typeof OWN_CODES)[number];

export const CLIENTS = ["claude-code", "codex", "opencode", "openai", "anthropic", "curl", "other"] as const;
export type ClientKind = (typeof CLIENTS)[number];

export const KINDS = ["main", "subagent", "auxiliary", "compaction"] as const;
export type RequestKind = (typeof KINDS)[number];

// The numbers that the words of the waiting room may use; null: not known.
export interface RoomNumbers {
  // "142%" of what the caches hold.
  demand: string | null;
  // It is more than they hold.
  over: boolean;
  // null: not known yet.
  gap: string | null;
  tier: string | null;
}

// The numbers that the words of a decision may use, already written for people.
export interface WhyNumbers {
  replica: string;
  home: string;
  inFlight: string;
  threshold: string;
  // "the least loaded of 4 (score 0.42, next e0/3 with 0.75)": filled where replicas were compared.
  compared: string;
}

export interface CauseWords {
  title: string;
  means: string;
  todo: string;
}
