// English words for the codes that the API sends.

import type { Decision, EnginePhase, ModelState, Operation, Outcome, PinVerdict, ReplicaState } from "../api/types";
import type { CheckCode, ClientKind, OwnCode, RequestKind } from "./codes";

export const decision: Record<Decision | "refused" | "left", string> = {
  placed: "Placed",
  sticky: "Sticky",
  spilled: "Spilled",
  client_pinned: "Client pinned",
  rehomed: "Rehomed",
  balanced: "Balanced",
  unrouted: "Unrouted",
  refused: "Refused",
  left: "Left",
};
export const decisionMeans: Record<Decision | "refused" | "left", string> = {
  placed: "A new conversation, put on the least loaded replica.",
  sticky: "A later turn that went to the replica which has read the conversation before.",
  spilled: "Its home was above the spill threshold, so another replica took this turn.",
  client_pinned: "The client named the replica itself.",
  rehomed: "Its home was lost or drained, or no longer held its context; it got a new one.",
  balanced: "No conversation was recognised, or an auxiliary call: least loaded, nothing remembered.",
  unrouted: "No replica was chosen by the warden: affinity is off, or the endpoint ignores the choice.",
  refused: "Not forwarded: no replica could take it, or the waiting room was full.",
  left: "Not forwarded: the client left before, while it waited.",
};
export const outcome: Record<Outcome, string> = {
  ok: "OK",
  client_error: "Client error",
  failed: "Failed",
  timeout: "Timed out",
  cancelled: "Cancelled",
  refused: "Refused",
};
export const replicaState: Record<ReplicaState, string> = { starting: "starting", ready: "ready", draining: "draining", down: "down" };
export const modelState: Record<ModelState, string> = { ok: "All well", warning: "Needs a look", fault: "Fault", starting: "Starting" };
export const phase: Record<EnginePhase, string> = {
  starting: "Starting",
  running: "Running",
  stopping: "Stopping",
  backing_off: "Crashed, starts again soon",
  failed: "Failed",
  stuck: "Stuck",
  stopped: "Stopped",
};
export const pinState: Record<PinVerdict, string> = {
  verified: "Pins verified",
  unverified: "Pins not tested yet",
  failed: "Pins not obeyed",
};
export const client: Record<ClientKind, string> = {
  "claude-code": "Claude Code",
  codex: "Codex",
  opencode: "OpenCode",
  openai: "OpenAI SDK",
  anthropic: "Anthropic SDK",
  curl: "curl",
  other: "Other",
};
export const kind: Record<RequestKind, string> = { main: "main", subagent: "subagent", auxiliary: "auxiliary", compaction: "compaction" };
export const opKind: Record<Operation["kind"], string> = { restart: "Restart", "rolling-restart": "Rolling restart" };
export const opState: Record<Operation["state"], string> = {
  running: "under way",
  done: "done",
  failed: "ended early",
  cancelled: "cancelled",
};
export const opStep: Record<NonNullable<Operation["step"]>, string> = {
  draining: "no new requests; the open ones finish",
  stopping: "stopping its process",
  starting: "waiting until it serves again",
};

export const checks: Record<CheckCode, { title: string; todo: string }> = {
  replicas: { title: "Not every replica takes requests", todo: "Each engine says what it is doing: see the card Engines." },
  panic: {
    title: "The probes of all engines fail",
    todo: "Requests are tried all the same. Look what stands between the warden and the engines, and whether they are overloaded.",
  },
  engine_down: { title: "An engine does not answer", todo: "Start it, or look why it cannot be reached." },
  engine_hangs: { title: "An engine hangs", todo: "Read its log, then press Restart: what it was asked will not be answered." },
  engine_starting: { title: "An engine is starting", todo: "Wait: large models take minutes. Its log shows how far it is." },
  engine_failed: { title: "An engine could not be started", todo: "Read its log, mend the cause, then press Restart." },
  engine_stuck: {
    title: "An old engine process does not end",
    todo: "Nothing is started beside it. Look at it on the host with ps and nvidia-smi.",
  },
  engine_crashed: { title: "An engine crashed", todo: "It is started again by itself. If it goes on, read its log." },
  engine_stopping: { title: "An engine is stopping", todo: "Wait." },
  engine_stopped: { title: "An engine is stopped", todo: "Press Restart to start it." },
  engine_outdated: { title: "An engine runs with an older command", todo: "A rolling restart applies the new one." },
  orphan: {
    title: "Old processes cannot be ended",
    todo: "They may hold GPUs. Look at them on the host with ps and nvidia-smi.",
  },
  keys_unreadable: {
    title: "The API keys cannot be read",
    todo: "Give keys.json back to the user that runs the warden (chown), or put a sound one there. The keys of before stay good until the warden starts again; then none is.",
  },
  no_keys: {
    title: "There is no API key",
    todo: "Every request is refused until one is made on the page Keys, or by lmwarden keys create NAME.",
  },
  no_metrics: {
    title: "An engine shows no metrics",
    todo: "Start vLLM without --disable-log-stats, and let /metrics through to the warden.",
  },
  stale_metrics: {
    title: "An engine's metrics are old",
    todo: "Look whether it is overloaded, or the way to it slow. The warden goes on with its own counts.",
  },
  pin_failed: {
    title: "An engine does not obey the rank",
    todo: "Requests there have no affinity. Look for a proxy that drops the header X-data-parallel-rank, use a vLLM that takes it, or run one server per replica.",
  },
  pin_unverified: { title: "It is not known yet whether an engine obeys the rank", todo: "It is tested again in a quieter moment." },
  no_usage_details: {
    title: "An engine does not say what was cached",
    todo: "Start vLLM with --enable-prompt-tokens-details. Until then every prompt counts as computed.",
  },
  same_engine: {
    title: "One server is named more than once",
    todo: "Name it once, under one address. Until then its replicas and caches are counted for each name.",
  },
  stalled: {
    title: "A replica has work and makes no progress",
    todo: "It gets no new conversations. If it does not recover, restart its engine.",
  },
  drained: {
    title: "A replica was taken out",
    todo: "It gets nothing new. Press Put back in its row of the card Data-parallel routing when it may serve again.",
  },
  restart_failed: { title: "The last restart ended early", todo: "Mend the cause and begin it again." },
  max_num_seqs: {
    title: "max_num_seqs is not known",
    todo: "The spill threshold is only a guess. Set max_num_seqs under [models.engine], or set the threshold itself.",
  },
  affinity_off: {
    title: "Affinity is off",
    todo: "If that is not meant, press the switch Affinity of the card Data-parallel routing. What is changed there holds over a restart.",
  },
  waiting_room: {
    title: "The waiting room holds requests back",
    todo: "More agents are at work than the caches hold. Fewer at a time, more replicas, or a CPU tier (kv_offload_gib)[ of at least {tier_tokens} tokens for each replica][, which are {tier_gib} GiB,] end the waiting.",
  },
  cpu_tier: {
    title: "A CPU tier would help",
    todo: "Set kv_offload_gib under [models.engine], or vLLM's --kv-offloading-size[: at least {tier_tokens} tokens for each replica][, which are {tier_gib} GiB].",
  },
  context_too_large: {
    title: "A context may grow beyond one cache",
    todo: "Start vLLM with a smaller --max-model-len, or give the KV cache more memory.",
  },
  contexts_do_not_fit: {
    title: "The conversations do not fit the caches",
    todo: "Fewer agents at a time, shorter contexts, or more cache (a CPU tier: kv_offload_gib[, at least {tier_tokens} tokens for each replica][, which are {tier_gib} GiB]).",
  },
  no_session_id: {
    title: "Many requests come without a session id",
    todo: "Set the clients up as the page Connect clients says, or name their header under client.session_headers.",
  },
  prefix_changes: {
    title: "Conversations stay, but little is cached",
    todo: "Something changes at the head of the prompts. The page Prefix breakers says what.",
  },
  ledger: { title: "History is not written", todo: "Requests are served all the same. Make room on the disk of the data folder." },
  ledger_dropped: { title: "Rows of the history were lost", todo: "Give the data folder a faster disk, or raise storage.max_queued_rows." },
  data_loop: { title: "The part that relays requests stands still", todo: "Restart the warden. Its log says where it stood." },
  client_open: {
    title: "Everybody who reaches the client port is served",
    todo: "Set client.require_key = true and make keys on the page Keys, or bind the port to 127.0.0.1.",
  },
  console_open: { title: "The console can be reached from elsewhere", todo: "Set a password, or bind it to 127.0.0.1 and use a tunnel." },
};

// The server's own sentences are English; a translation stands here by the check's code, with {names} of the parameters
// that the server sends; with ".ok" after it for how all being well is said.
export const checkTexts: Partial<Record<string, string>> = {};
// The same for what a launched engine is at, by its phase.
export const processTexts: Partial<Record<EnginePhase, string>> = { starting: "{step}" };
// Parameters that are words, by their name.
export const paramWords: Partial<Record<string, Partial<Record<string, string>>>> = {};

export const ownCodes: Record<OwnCode, string> = {
  model_not_found: "unknown model",
  not_found: "no such path",
  invalid_api_key: "key missing or wrong",
  invalid_json: "body is no JSON object",
  model_missing: "no model named",
  model_invalid: "model is no string",
  invalid_replica: "no such replica",
  previous_response_not_found: "previous response not known",
  request_too_large: "body too large",
  unsupported_coding: "unknown compression",
  invalid_coding: "broken compression",
  malformed: "not valid HTTP",
  foreign_page: "web page of another origin",
  unknown_expectation: "unknown expectation",
  head_too_large: "head too large",
  unknown_version: "unknown HTTP version",
  invalid_request: "invalid request",
  shutting_down: "shutting down",
  overloaded: "too much at once",
};
