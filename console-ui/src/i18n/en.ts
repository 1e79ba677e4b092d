// English. The shape of this dictionary is the type of every other one: a text that is missing there fails the build.

import type { Decision, EnginePhase, ModelState, Operation, Outcome, PinVerdict, ReplicaState } from "../api/types";
import type { CauseWords, CheckCode, ClientKind, RequestKind } from "./codes";
import { causes, why } from "./en-why";

const decision: Record<Decision | "refused", string> = {
  placed: "Placed", sticky: "Sticky", spilled: "Spilled", client_pinned: "Client pinned", rehomed: "Rehomed", balanced: "Balanced",
  unrouted: "Unrouted", refused: "Refused",
};
const decisionMeans: Record<Decision | "refused", string> = {
  placed: "A new conversation, put on the least loaded replica.",
  sticky: "A later turn that went to the replica which has read the conversation before.",
  spilled: "Its home was above the spill threshold, so another replica took this turn.",
  client_pinned: "The client named the replica itself.",
  rehomed: "Its home was lost or drained; it got a new one.",
  balanced: "No conversation was recognised, or an auxiliary call: least loaded, nothing remembered.",
  unrouted: "No replica was chosen by the warden: affinity is off, or the endpoint ignores the choice.",
  refused: "Not forwarded: no replica could take it.",
};
const outcome: Record<Outcome, string> = {
  ok: "OK", client_error: "Client error", failed: "Failed", timeout: "Timed out", cancelled: "Cancelled", refused: "Refused",
};
const replicaState: Record<ReplicaState, string> = { starting: "starting", ready: "ready", draining: "draining", down: "down" };
const modelState: Record<ModelState, string> = { ok: "All well", warning: "Needs a look", fault: "Fault", starting: "Starting" };
const phase: Record<EnginePhase, string> = {
  starting: "Starting", running: "Running", stopping: "Stopping", backing_off: "Crashed, starts again soon", failed: "Failed", stuck: "Stuck",
  stopped: "Stopped",
};
const pinState: Record<PinVerdict, string> = { verified: "Pins verified", unverified: "Pins not tested yet", failed: "Pins not obeyed" };
const client: Record<ClientKind, string> = {
  "claude-code": "Claude Code", codex: "Codex", opencode: "OpenCode", openai: "OpenAI SDK", anthropic: "Anthropic SDK", curl: "curl", other: "Other",
};
const kind: Record<RequestKind, string> = { main: "main", subagent: "subagent", auxiliary: "auxiliary", compaction: "compaction" };
const opKind: Record<Operation["kind"], string> = { restart: "Restart", "rolling-restart": "Rolling restart" };
const opState: Record<Operation["state"], string> = { running: "under way", done: "done", failed: "ended early", cancelled: "cancelled" };
const opStep: Record<NonNullable<Operation["step"]>, string> = {
  draining: "no new requests; the open ones finish", stopping: "stopping its process", starting: "waiting until it serves again",
};

const checks: Record<CheckCode, { title: string; todo: string }> = {
  replicas: { title: "Not every replica takes requests", todo: "Look at the engines below: each says what it is doing." },
  panic: { title: "The probes of all engines fail", todo: "Requests are tried all the same. Look what stands between the warden and the engines, and whether they are overloaded." },
  engine_down: { title: "An engine does not answer", todo: "Start it, or look why it cannot be reached." },
  engine_starting: { title: "An engine is starting", todo: "Wait: large models take minutes. Its log shows how far it is." },
  engine_failed: { title: "An engine could not be started", todo: "Read its log, mend the cause, then press Restart." },
  engine_stuck: { title: "An old engine process does not end", todo: "Nothing is started beside it. Look at it on the host with ps and nvidia-smi." },
  engine_crashed: { title: "An engine crashed", todo: "It is started again by itself. If it goes on, read its log." },
  engine_stopping: { title: "An engine is stopping", todo: "Wait." },
  engine_stopped: { title: "An engine is stopped", todo: "Press Restart to start it." },
  engine_outdated: { title: "An engine runs with an older command", todo: "A rolling restart applies the new one." },
  no_metrics: { title: "An engine shows no metrics", todo: "Start vLLM without --disable-log-stats, and let /metrics through to the warden." },
  stale_metrics: { title: "An engine's metrics are old", todo: "Look whether it is overloaded, or the way to it slow. The warden goes on with its own counts." },
  pin_failed: { title: "An engine does not obey the rank", todo: "Requests there have no affinity. Look for a proxy that drops the header X-data-parallel-rank, use a vLLM that takes it, or run one server per replica." },
  pin_unverified: { title: "It is not known yet whether an engine obeys the rank", todo: "It is tested again in a quieter moment." },
  no_usage_details: { title: "An engine does not say what was cached", todo: "Start vLLM with --enable-prompt-tokens-details. Until then every prompt counts as computed." },
  stalled: { title: "A replica has work and makes no progress", todo: "It gets no new conversations. If it does not recover, restart its engine." },
  drained: { title: "A replica was taken out", todo: "It gets nothing new. Press Put back in its row when it may serve again." },
  restart_failed: { title: "The last restart ended early", todo: "Mend the cause and begin it again." },
  max_num_seqs: { title: "max_num_seqs is not known", todo: "The spill threshold is only a guess. Set max_num_seqs under [models.engine], or set the threshold below." },
  context_too_large: { title: "A context may grow beyond one cache", todo: "Start vLLM with a smaller --max-model-len, or give the KV cache more memory." },
  contexts_do_not_fit: { title: "The conversations do not fit the caches", todo: "Fewer agents at a time, shorter contexts, or more cache (a CPU tier: kv_offload_gib)." },
  no_session_id: { title: "Many requests come without a session id", todo: "Set the clients up as the page Connect clients says, or name their header under client.session_headers." },
  prefix_changes: { title: "Conversations stay, but little is cached", todo: "Something changes at the head of the prompts. The page Prefix breakers says what." },
  ledger: { title: "History is not written", todo: "Requests are served all the same. Make room on the disk of the data folder." },
  ledger_dropped: { title: "Rows of the history were lost", todo: "Give the data folder a faster disk, or raise storage.max_queued_rows." },
  data_loop: { title: "The part that relays requests stands still", todo: "Restart the warden. Its log says where it stood." },
  console_open: { title: "The console can be reached from elsewhere", todo: "Set a password, or bind it to 127.0.0.1 and use a tunnel." },
};

export const en = {
  lang: { name: "English", label: "Language" },
  theme: { label: "Theme", system: "System", light: "Light", dark: "Dark" },
  common: {
    unknown: "not known", loading: "Loading…", none: "None", all: "All", model: "Model", replica: "Replica", replicas: "Replicas", copy: "Copy",
    copied: "Copied", cancel: "Cancel", close: "Close", apply: "Apply", save: "Save", retry: "Try again", open: "Open", more: "Load more", live: "Live",
    tokens: "tokens", menu: "Menu", skip: "Skip to the content", yes: "yes", no: "no", details: "Details", total: "Total", download: "Download", time: "Time",
    readOnly: "You can look, but not change anything from here: changes are accepted after sign-in, or from the machine itself.",
    failed: (what: string) => `That did not work: ${what}`,
    unreachable: "The warden cannot be reached.",
    ago: (span: string) => `${span} ago`,
    since: (span: string) => `for ${span}`,
    nothing: "Nothing here yet.",
  },
  nav: {
    main: "Pages", overview: "Overview", models: "Models", stats: "Stats", conversations: "Conversations", breakers: "Prefix breakers", requests: "Requests",
    connect: "Connect clients", keys: "Keys", settings: "Settings", signOut: "Sign out", checks: "Checks",
  },
  live: {
    open: "Live", connecting: "Connecting…", broken: "Connection lost", old: (age: string) => `Data is ${age} old`,
    brokenLong: (age: string) => `The connection to the warden is lost. What you see is ${age} old. Trying again…`,
    stuckLong: (age: string) => `The warden answers, but its figures have not moved for ${age}.`,
    updated: (version: string) => `The warden was updated to ${version}.`, reload: "Reload the page",
  },
  signIn: {
    title: "Sign in", password: "Password", button: "Sign in", wrong: "That is not the password.",
    throttled: (wait: string) => `Too many tries. Wait ${wait}.`, hint: "The password is in the file that console.password_file names.",
  },
  state: { model: modelState, replica: replicaState, phase, pins: pinState, engine: { up: "answers", down: "does not answer", starting: "no answer yet" },
    stalled: "no progress", suspect: "in doubt", suspectMeans: "It failed or stayed silent a moment ago: no new conversations for a while.", drained: "taken out" },
  decision, decisionMeans, outcome, client, kind, checks, why, causes: causes as Record<keyof typeof causes, CauseWords>,
  overview: {
    title: "Overview", ready: (ready: string, all: string) => `${ready} of ${all} replicas ready`, inFlight: "In flight", waiting: "waiting",
    promptRate: "Prompt tokens/s", completionRate: "Completion tokens/s", cachedHour: "Cached, last hour", conversations: "Live conversations",
    roomFor: "Room for about", roomUnit: "more", warnings: "Warnings", noWarnings: "Nothing to worry about.", fault: "Fault", warning: "Warning",
    cachedOf: (rate: string) => `${rate} of them cached`, ledger: "History is not written:", open: (name: string) => `Open ${name}`,
    noModels: "No model is served yet.", noConversations: "No agent has asked anything yet.", connectFirst: "Connect a client",
  },
  model: {
    card: "Data-parallel routing", affinityOn: "Affinity on", affinityOff: "Affinity off", affinity: "Affinity",
    threshold: (value: string, source: string) => `Spill threshold ${value} (${source})`,
    source: { auto: "auto", set: "set", default: "default: max_num_seqs unknown" }, sticky: (value: string) => `Sticky ${value}`, inFlight: (value: string) => `In flight ${value}`,
    countingSince: (at: string, span: string) => `Counting since ${at} (${span})`, decisions: "Decisions", held: "Conversations held", refused: "Refused",
    columns: {
      replica: "Replica", inFlight: "In flight", sticky: "Sticky", spilledIn: "Spilled in", clientPinned: "Client pinned", running: "Running / waiting",
      kvUsed: "KV used", hitRate: "Prefix-cache hit rate", placed: "Placed", rehomed: "Rehomed in", conversations: "Conversations", held: "Held context", actions: "Actions",
    },
    columnMeans: {
      inFlight: "Forwarded by the warden and not finished, by its own count.", running: "The engine's own count: running now / queued inside the engine.",
      kvUsed: "Share of the KV cache that running requests use at this moment. Idle cached blocks do not count.",
      hitRate: "From the engine's own counters since the warden's start. vLLM 0.26 counts a waiting request again at every scheduling attempt.",
      held: "Context of the live conversations at home here, against the capacity of this replica's KV cache.",
    },
    busiest: (replica: string, inFlight: string, share: string) => `Busiest: ${replica} with ${inFlight} in flight, ${share} of all.`,
    busiestHolds: (conversations: string, ratio: string) => ` It is the home of ${conversations} live conversations that hold ${ratio} of its cache.`,
    busiestSpill: (n: string) => ` ${n} requests spilled to it from others.`,
    busiestAbove: " It is above the spill threshold: its later turns go elsewhere for now.",
    quiet: "No replica has anything in flight.",
    even: (n: string) => `All replicas have ${n} in flight.`,
    capacity: "Room in the caches", heldOf: (held: string, all: string) => `${held} of ${all} tokens held by live conversations`,
    heldOnly: (held: string) => `${held} tokens held by live conversations; the capacity of the caches is not known`,
    roomFor: (n: string) => `Room for about ${n} more conversations of your size`, meanContext: (n: string) => `(${n} tokens on average)`,
    roomUnknown: "How many more conversations fit is not known yet.", full: "The live conversations no longer fit the caches: replicas will read histories again.",
    room: "Waiting room", roomOff: "Off: requests are forwarded at once.", roomWaiting: (n: string) => `${n} requests wait for a place.`, roomEmpty: "Nobody waits.", roomEngaged: "engaged", roomNotYet: "This version has no waiting room.",
    settings: "Settings", settingsHint: "Applied at once, and kept over a restart of the warden.", thresholdLabel: "Spill threshold", thresholdAuto: "Automatic",
    thresholdHint: "Requests in flight at a conversation's home above which a turn goes elsewhere. Automatic: a quarter of max_num_seqs.",
    placement: "Placement of new conversations", placementChoice: { "least-loaded": "Least loaded", hash: "By hash of the id" },
    admission: "Admission", admissionChoice: { auto: "Automatic", off: "Off" }, prefer: "Prefer", preferChoice: { balanced: "Balanced", median: "Median", tail: "Tail" },
    maxWait: "Longest wait (s)", applied: "Applied.", identity: "Recognised by", identityWords: (sent: string, derived: string, none: string) => `session id ${sent}, beginning of the conversation ${derived}, not at all ${none}`,
    engines: "Engines", version: "Version", address: "Address", command: "Effective command", copyCommand: "Copy the command", logs: "Logs", restart: "Restart", rolling: "Rolling restart", drain: "Drain",
    undrain: "Put back", scrape: "Metrics seen", restarts: "Restarts", pid: "Process", takenOver: "taken over from an earlier warden", attached: "not started by the warden", outdated: "runs an older command",
    lastLines: "Its last lines", pinsTitle: "Obeys the rank on", startUp: "Start-up", ranks: (n: string) => `${n} replicas`, oneRank: "1 replica",
    confirmDrain: (replica: string) => `Drain ${replica}?`, confirmDrainText: "It gets no new requests; open ones finish. Its conversations get new homes on their next turn.",
    confirmRestart: (engine: string) => `Restart ${engine}?`, confirmRestartText: "Its open requests finish first (up to the drain time); then its process is ended and started again. Its cache is empty afterwards.",
    confirmRolling: "Restart all engines one after the other?", confirmRollingText: "Each is drained first, and the next begins when the one before serves again.",
    allowOutage: "Also if no other replica is ready (the model is not served meanwhile)",
    opTitle: opKind, opState, opStep, opProgress: (done: string, all: string) => `${done} of ${all} engines done`, opCancel: "Stop the restart", opAt: (engine: string, step: string) => `${engine}: ${step}`,
    aliases: "Also called", context: (n: string) => `context ${n} tokens`, gone: "No model of that name is served.", starting: "No snapshot has come in yet.",
  },
  logs: {
    title: (engine: string) => `Log of ${engine}`, search: "Search", searchHint: "Part of a line, any case", follow: "Follow", lines: "Lines", download: "Download", empty: "No line matches.",
    none: "This engine was not started by the warden: its log is where it was started.", label: "Lines of the log",
  },
  connect: {
    title: "Connect clients", intro: "Paste this where the client reads it. Each client then sends a session id, by which its conversation stays on one replica.",
    waiting: "Waiting for the first request…", waitingHint: "Start the client now. A tick appears here when its first request arrives.",
    arrived: (client: string, replica: string, decision: string, at: string) => `First request: ${client} → ${replica} (${decision}) at ${at}`,
    arriving: "A request is being served right now…", before: (at: string) => `This model has served requests since ${at}.`, keyNeeded: "A key is needed:", makeKey: "create one on the page Keys",
    client: "Client",
  },
  stats: {
    title: "Stats", range: "Range", ranges: { "1h": "1 h", "6h": "6 h", "24h": "24 h", "7d": "7 d", free: "Free" }, from: "From", to: "To", tokens: "Tokens per second",
    cached: "Cached (measured)", computed: "Computed", completion: "Completion", prompt: "Prompt",
    cachedOver: (ratio: string, window: string) => `cached ${ratio} over ${window}`, cachedUnknown: (window: string) => `no prompt was finished over ${window}`,
    windows: { "1h": "the last hour", "6h": "the last 6 hours", "24h": "the last 24 hours", "7d": "the last 7 days", free: "this range" },
    tokensHint: "Prompt tokens upwards, completion tokens downwards on a scale of their own. Cached is what the engine counted for each finished request; what it did not measure counts as computed.",
    latency: "Time to first byte", latencyHint: "From the complete request to the engine's first byte, time in the waiting room included.",
    decisions: "Requests by decision", busy: "Replicas busy", busyHint: "Replicas that ran at least one request, on average.", kv: "KV used", waiting: "Running and waiting",
    failures: "Failures", perSecond: "per second", running: "Running", queued: "Waiting in the engine", inFlight: "In flight", failed: "Failed or timed out", refused: "Refused",
    p50: "p50", p95: "p95", p99: "p99", busySeries: "Busy", kvSeries: "Mean KV used", csv: "CSV", png: "PNG", table: "As a table", noData: "No data in this range.",
    requestsCount: (n: string) => `${n} requests`, exportCsv: (what: string) => `Export “${what}” as CSV`, exportPng: (what: string) => `Export “${what}” as PNG`, logScale: "Log scale", badRange: "The beginning must lie before the end.", gap: "no data",
  },
  conversations: {
    title: "Conversations", live: "Live", all: "All", state: "Which", sort: "Sorted by", sorts: { last_used: "Last used", context: "Context", turns: "Turns" },
    columns: { conversation: "Conversation", client: "Client", home: "Home", turns: "Turns", context: "Context", cached: "Cached, last turn", state: "State", lastUsed: "Last used" },
    derived: "derived", derivedMeans: "The client sent no session id: it is recognised by how it begins.", states: { running: "running", idle: "idle", dormant: "dormant" },
    subagent: "subagent", shown: (n: string, total: string) => `${n} of ${total}`, held: "Order is held while you point at the list.", empty: "No conversation yet.",
    statesMean: { running: "A turn is in flight.", idle: "Used a while ago, still live.", dormant: "Not used for a long time." },
  },
  conversation: {
    title: (short: string) => `Conversation ${short}`, tree: "Subagents", timeline: "Turns, newest first", cost: "What had to be read again", costNone: "Nothing had to be read twice.",
    costTokens: (n: string) => `${n} tokens`, costHint: "Prompt tokens that an earlier turn had already been through a cache with, and that were computed anew.",
    parent: "Started by", cachedComputed: (cached: string, computed: string) => `${cached} cached, ${computed} computed`, completion: (n: string) => `${n} generated`, prompt: "Prompt",
    timing: { waited: "waiting room", first: "queue and prefill", decode: "decode" }, shared: (ratio: string) => `${ratio} of the previous request's beginning came again`,
    recomputed: (n: string) => `${n} tokens read again`, compared: "Replicas compared", score: "Score", retried: "sent a second time after a failure", gone: "This conversation is not known.",
    slow: "Why slow?", slowWords: { waited: "Most of the time it waited in the waiting room.", first: "Most of the time went into the engine's queue and reading the prompt.", decode: "Most of the time went into generating the answer." }, turnAt: (at: string) => `Turn at ${at}`, oldest: "Older turns are not kept here.", notMeasured: "not measured",
    candidate: { inFlight: "In flight", conversations: "Conversations", kv: "KV used", held: "Held" },
  },
  breakers: {
    title: "Prefix breakers", intro: "Turns that stayed home and still had to read more than the new part of their prompt: what changed, what it cost, and what to set.",
    columns: { cause: "What changed", client: "Client", turns: "Turns", tokens: "Tokens read again", share: "Of all prompt tokens", example: "Example", todo: "What to set" },
    window: "Over", none: "No prefix was broken. Every turn that stayed home found its history in the cache.", windows: { "1h": "1 hour", "24h": "24 hours", "7d": "7 days" },
  },
  requests: {
    title: "Requests", intro: "The last 10,000. No text is kept, here or anywhere.", key: "Key", outcome: "Outcome", decision: "Decision", noKey: "no key",
    columns: { time: "Ended", conversation: "Conversation", client: "Client", key: "Key", endpoint: "Endpoint", replica: "Replica", decision: "Decision", outcome: "Outcome", prompt: "Prompt", cached: "Cached", completion: "Completion", first: "First byte", duration: "Duration" },
    empty: "No request matches.", reset: "Clear the filters",
  },
  keys: {
    title: "Keys", intro: "A key names who asks. It keeps conversations of different people apart and shows their use here.", name: "Name", nameHint: "1 to 64 letters, digits, dots, hyphens or underscores", create: "Create a key", created: "Created", lastUsed: "Last used", requests: "Requests, 24 h",
    prompt: "Prompt tokens, 24 h", completion: "Completion tokens, 24 h", revoke: "Revoke", once: (name: string) => `The key “${name}”`, onceText: "It is shown this once. Copy it now: only a hash of it is kept.", key: "The key",
    confirm: (name: string) => `Revoke “${name}”?`, confirmText: "Whoever uses it is refused within a second. It cannot be brought back.", never: "never", empty: "No key yet. Without one, requests are accepted from this machine only.",
  },
  settings: {
    title: "Settings", intro: "The configuration in force. What can be changed while it runs is on the model's page; the rest is in the file and needs a restart.", file: "File", noFile: "no file: defaults and the command line",
    key: "Setting", value: "Value", source: "Set by", fromDefault: "default", search: "Search", secret: "secrets are never shown", empty: "No setting matches.", other: "General",
  },
  checks_page: { title: "Checks", intro: "What lmwarden doctor looks at, now.", again: "Check again", ok: "OK" },
};

export type Texts = typeof en;
