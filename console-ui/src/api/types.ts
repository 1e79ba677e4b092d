// The console's JSON as the page reads it. Names are the API's own (docs/metrics.md). null: not known, which is never 0.
// Times are Unix seconds, ratios 0..1.

export const DECISIONS = ["placed", "sticky", "spilled", "client_pinned", "rehomed", "balanced", "unrouted"] as const;
export type Decision = (typeof DECISIONS)[number];

export const OUTCOMES = ["ok", "client_error", "failed", "timeout", "cancelled", "refused"] as const;
export type Outcome = (typeof OUTCOMES)[number];

export type ReplicaState = "starting" | "ready" | "draining" | "down";
export type PinVerdict = "unverified" | "verified" | "failed";
export type ModelState = "ok" | "warning" | "fault" | "starting";
export type Level = "ok" | "warning" | "fault";

export interface Session {
  sign_in: boolean;
  signed_in: boolean;
  may_change: boolean;
  csrf: string | null;
  version: string;
  /** Modelled seconds per second; above 1 the engine is a simulated one. */
  speed: number;
}

export type Params = Record<string, string | number>;

export interface Warning {
  code: string;
  level?: Level;
  text: string;
  what_to_do: string | null;
  // The numbers and names of the text, for another language.
  params?: Params;
}

// What the warden answered itself, so that no request row tells of it.
export interface OwnAnswer {
  status: number;
  code: string;
  count: number;
}

export interface OverviewModel {
  name: string;
  state: ModelState;
  replicas: number;
  replicas_ready: number;
  in_flight: number;
  waiting: number;
  prompt_tokens_per_s: number | null;
  cached_tokens_per_s: number | null;
  completion_tokens_per_s: number | null;
  cached_ratio_1h: number | null;
  conversations_live: number | null;
  warnings: Warning[];
}

export interface Overview {
  models: OverviewModel[];
  ledger_trouble: string | null;
  own_answers?: OwnAnswer[];
}

export interface ReplicaRow {
  replica: string;
  state: ReplicaState;
  stalled: boolean;
  suspect: boolean;
  drained: boolean;
  in_flight: number;
  placed: number;
  sticky: number;
  spilled_in: number;
  client_pinned: number;
  rehomed_in: number;
  balanced: number;
  conversations: number;
  resident_tokens: number;
  kv_cache_tokens: number | null;
  running: number | null;
  waiting: number | null;
  kv_used_ratio: number | null;
  prefix_hit_ratio: number | null;
  // Conversations with a place in the waiting room's books, and what those places hold; null: there is no room.
  residents?: number | null;
  reserved_tokens?: number | null;
}

export const PREFERENCES = ["balanced", "median", "tail"] as const;
export type Preference = (typeof PREFERENCES)[number];

// The waiting room. A warden that does not have it says mode "off" and nothing of the rest.
export interface Admission {
  mode: "auto" | "off";
  engaged: boolean;
  waiting: number;
  room_for: number | null;
  prefer?: Preference;
  max_wait_s?: number;
  longest_wait_s?: number | null;
  residents?: number | null;
  reserved_tokens?: number | null;
  // Context of the conversations in use over what the replicas hold.
  demand_ratio?: number | null;
  wait_expired?: number | null;
  why?: string | null;
  why_code?: string | null;
  // The pause between two turns that a quarter of the pauses exceeds.
  gap_s?: number | null;
  tier_tokens?: number | null;
  tier_advice?: TierAdvice | null;
}

export interface TierAdvice {
  needed_tokens_per_replica: number;
  needed_gib_per_replica: number | null;
}

export interface PinLine {
  engine: string;
  endpoint: string;
  state: PinVerdict;
  detail: string | null;
  tested_at: number | null;
}

export interface Routing {
  affinity: boolean;
  placement: string;
  spill_threshold: number;
  spill_threshold_source: "set" | "auto" | "default";
  sticky_ratio: number | null;
  in_flight: number;
  decisions: Record<Decision, number>;
  refused: number;
  balancer: string | null;
  counting_since: string;
  admission: Admission;
  pins: { state: PinVerdict; detail: string | null; endpoints: PinLine[] };
  replicas: ReplicaRow[];
}

export type EnginePhase = "starting" | "running" | "stopping" | "backing_off" | "failed" | "stuck" | "stopped";

// An end that nobody wanted.
export interface Crash {
  at: number;
  // Negative: by that signal.
  exit_status: number | null;
  was_ready: boolean;
  // Before the next start; null: the engine was given up.
  pause_s: number | null;
  // When it served again; null: not yet.
  over_at: number | null;
}

export interface EngineProcess {
  phase: EnginePhase;
  detail: string;
  step: string | null;
  progress_ratio: number | null;
  since: number;
  pid: number | null;
  restarts: number;
  exit_status: number | null;
  // Absent: an older warden, which does not say.
  last_crash?: Crash | null;
  last_lines: string[];
  taken_over: boolean;
  outdated: boolean;
  command: string;
  log: string;
}

export interface Engine {
  engine: string;
  model: string;
  url: string;
  ranks: number;
  state: "starting" | "up" | "down";
  version: string | null;
  is_vllm: boolean | null;
  scrape_age_s: number | null;
  usage_details: boolean | null;
  pins: PinLine[];
  launched: boolean;
  process: EngineProcess | null;
}

export interface Operation {
  kind: "restart" | "rolling-restart";
  state: "running" | "done" | "failed" | "cancelled";
  engines: string[];
  done: string[];
  engine: string | null;
  step: "draining" | "stopping" | "starting" | null;
  step_since: number;
  started_at: number;
  ended_at: number | null;
  sentence: string;
}

export interface ModelDetail {
  name: string;
  aliases: string[];
  max_model_len: number | null;
  conversations: number;
  identity: { sent: number; derived: number; none: number };
  panic: boolean;
  engines: Engine[];
  operation: Operation | null;
  warnings: Warning[];
  routing: Routing;
  held_tokens: number | null;
  room_for: number | null;
  mean_context_tokens: number | null;
}

export interface Snapshot {
  taken_at: number;
  counting_since: string;
  overview: Overview;
  models: ModelDetail[];
}

export interface Page<T> {
  items: T[];
  next: string | null;
  total?: number | null;
}

export interface Conversation {
  id: string;
  short: string;
  client: string | null;
  derived: boolean;
  parent: string | null;
  kind: string | null;
  home: string | null;
  turns: number;
  context_tokens: number | null;
  cached_ratio_last: number | null;
  state: "waiting" | "running" | "idle" | "dormant";
  waiting_since: number | null;
  in_flight: number;
  last_used: number | null;
  key_name: string | null;
  model?: string;
}

// msgspec writes a named tuple as an array.
export type ReplicaName = string | [string, number];

export interface Candidate {
  replica: ReplicaName;
  score: number;
  in_flight: number;
  warm?: number;
  conversations?: number;
  live_share?: number;
  kv_used_ratio?: number | null;
  held_ratio?: number | null;
  other?: number;
}

// What a finished request says about where it went and what it cost.
export interface Turn {
  finished_at: number;
  replica: string | null;
  decision: Decision | null;
  why: string | null;
  home: string | null;
  home_in_flight: number | null;
  spill_threshold: number | null;
  candidates: Candidate[] | null;
  waited_s: number;
  first_byte_s: number | null;
  duration_s: number;
  // Absent: an older warden, which does not say.
  streamed?: boolean;
  prompt_tokens: number | null;
  cached_tokens: number | null;
  computed_tokens?: number | null;
  completion_tokens: number | null;
  outcome: Outcome;
  status: number;
  prefix_change: string | null;
  prefix_shared_ratio: number | null;
  recomputed_tokens: number | null;
  endpoint: string;
  retried: boolean;
}

export interface RequestRow extends Turn {
  id: number;
  model: string;
  key_name: string | null;
  conversation: string | null;
  conversation_id: string | null;
  client: string | null;
  kind: string | null;
  derived: boolean;
}

export interface ConversationDetail {
  conversation: Conversation;
  children: Conversation[];
  turns: Turn[];
  recomputed_by_cause: Record<string, number>;
}

// Of the requests that ended in a stretch of time: what of the prompts was cached, by the engines' own count, and how
// soon the answers began.
export interface CachedShare {
  replica: string;
  cached_ratio: number | null;
  prompt_tokens: number;
  first_byte_p50_s: number | null;
  first_byte_p95_s: number | null;
}

export interface CachedShares {
  cached_ratio: number | null;
  replicas: CachedShare[];
}

export interface PrefixBreaker {
  cause: string;
  turns: number;
  recomputed_tokens: number;
  share_of_prompt: number | null;
  example: string | null;
  client: string | null;
  what_to_do: string | null;
}

// A point of a chart: t is where its bucket begins; everything else is a number or not known.
export type Point = { t: number } & Record<string, number | null>;

export interface Series {
  from: number;
  to: number;
  step_s: number;
  cached_ratio?: number | null;
  replicas?: number;
  totals?: { p50: number | null; p95: number | null; p99: number | null; count: number };
  points: Point[];
}

export interface ApiKey {
  name: string;
  created_at: number | string | null;
  last_used_at: number | null;
  requests_24h: number | null;
  prompt_tokens_24h: number | null;
  completion_tokens_24h: number | null;
  // null: all of them.
  models?: string[] | null;
}

export interface KeyPage {
  items: ApiKey[];
  // Whose requests are served without a key. Absent: an older warden, which does not say.
  keyless?: "nobody" | "this_machine" | "everybody";
}

export interface SettingItem {
  key: string;
  value: unknown;
  source: string;
}

export interface Settings {
  file: string | null;
  items: SettingItem[];
}

export interface ConnectTexts {
  model: string;
  url: string;
  clients: { client: string; text: string }[];
  key_needed: boolean;
  first_request_at: number | null;
}
