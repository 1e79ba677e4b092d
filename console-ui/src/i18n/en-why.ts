// English words for decisions (with their numbers) and for what breaks a prefix.

import type { Cause, CauseWords, Why, WhyNumbers } from "./codes";

type Words = (n: WhyNumbers) => string;

export const why: {
  code: Record<Why, Words>;
  placed: Words;
  rehomed: Words;
  balanced: Words;
  refused: string;
  left: string;
  compared: (n: { replica: string; count: string; score: string; next: string; nextScore: string }) => string;
  comparedShort: (n: { replica: string; count: string }) => string;
  noReplica: string;
  itsHome: string;
} = {
  code: {
    least_loaded: (n) => `${n.compared}.`,
    fork: (n) => `A fork of a conversation whose beginning is on ${n.replica}, so it went there.`,
    sibling: (n) => `A sibling subagent with the same beginning is on ${n.replica}, so it went there.`,
    hash: (n) => `Placed by the hash of its id: ${n.replica}.`,
    named: (n) => `The client named ${n.replica} itself.`,
    not_above: (n) => `Stayed home: ${n.home} had ${n.inFlight} in flight, not above the spill threshold ${n.threshold}.`,
    no_other: (n) => `Stayed home: ${n.home} had ${n.inFlight} in flight (spill threshold ${n.threshold}), but no other replica had fewer.`,
    above: (n) => `Its home ${n.home} had ${n.inFlight} in flight, above the spill threshold ${n.threshold}; ${n.replica} took this turn.`,
    not_yet_back: (n) =>
      `Its home ${n.home} had ${n.inFlight} in flight, not yet well below the spill threshold ${n.threshold}; ${n.replica}, which took an earlier turn, took this one too.`,
    suspect: (n) => `Its home ${n.home} had just failed; ${n.replica} took this turn.`,
    stalled: (n) => `Its home ${n.home} has work and makes no progress; ${n.replica} took this turn.`,
    awaited: (n) => `Its home ${n.home} had not been heard of since the warden started; ${n.replica} took this turn.`,
    last_turn: (n) => `It went to ${n.replica}, where the conversation's last turn went.`,
    room: (n) => `It waited for a place; its home ${n.home} no longer held its context, and ${n.replica} had room.`,
    response: (n) => `It continues a response that only the engine of ${n.replica} keeps.`,
    affinity_off: () => "Affinity was off: the engine's own balancer decided.",
    rank_ignored: () => "This endpoint ignores the choice of a replica: the engine's own balancer decided.",
  },
  placed: (n) => `New conversation: ${n.compared}.`,
  rehomed: (n) => `Its home ${n.home} was lost or drained; new home: ${n.compared}.`,
  balanced: (n) => `No conversation to keep: ${n.compared}.`,
  refused: "Not forwarded: no replica could take it, or the waiting room was full.",
  left: "Not forwarded: the client left before, while it waited.",
  compared: (n) => `${n.replica} was the least loaded of ${n.count} (score ${n.score}; next ${n.next} with ${n.nextScore})`,
  comparedShort: (n) => `${n.replica} was the least loaded${n.count ? ` of ${n.count}` : ""}`,
  noReplica: "the engine's choice",
  itsHome: "its home",
};

export const causes: Record<Cause, CauseWords> = {
  extends: { title: "Only grew", means: "This request repeats the one before and adds to it, as it should.", todo: "Nothing." },
  first: {
    title: "First turn",
    means: "There is no request before it to compare with.",
    todo: "Nothing: a beginning is always read once.",
  },
  compaction: {
    title: "Compaction",
    means: "The client summed up its history and goes on from the summary.",
    todo: "Tell the client how large the context really is (Connect clients does), so that it compacts as late as possible.",
  },
  tools_changed: {
    title: "The tools changed",
    means: "The list of tools stands before the history. When it changes, everything after it is read again.",
    todo: "Claude Code: ENABLE_TOOL_SEARCH=false. Others: keep the list and its order the same during a conversation; connect MCP servers before it begins.",
  },
  system_changed: {
    title: "The system prompt changed",
    means: "The system prompt stands first. When it changes, everything after it is read again.",
    todo: "Keep what varies (files, git status, memory) out of the system prompt; put it into the last message.",
  },
  billing_line: {
    title: "A billing line at the head",
    means: "Claude Code puts a line that changes with each request before its system prompt.",
    todo: "Claude Code: CLAUDE_CODE_ATTRIBUTION_HEADER=0.",
  },
  timestamp: {
    title: "A time or a counter at the head",
    means: "An early part of the prompt differs from the one before only in its digits: a time stamp, a date, a counter.",
    todo: "Take the time out of the system prompt, or give the date without the time of day; put it into the last message.",
  },
  system_turn_moved: {
    title: "A system message moved",
    means: "A message of the system stood at another place than before (a reminder that wanders to the end).",
    todo: "Have the client leave system messages where they first stood. A newer release may do so.",
  },
  history_edited: {
    title: "The history was edited",
    means: "An earlier message is not what it was: cut, cleaned or rewritten by the client.",
    todo: "Switch off the clearing of old tool results, or let it happen seldom and in large steps.",
  },
  evicted: {
    title: "Pushed out of the cache",
    means: "The prompt only grew and the conversation was at home, but its history was not in the cache any more.",
    todo: "The cache is too small for so many live conversations: fewer at a time, more memory for the KV cache, or a CPU tier (kv_offload_gib).",
  },
  moved: {
    title: "Served by another replica",
    means: "This turn went to a replica that had not read the history.",
    todo: "See why in the turn. Many spills: raise the spill threshold, or add a replica.",
  },
  spilled: {
    title: "Spilled to another replica",
    means: "Its home was too busy and the turn went to a replica that had not read the history.",
    todo: "If it happens often: raise the spill threshold, or add a replica.",
  },
  rehomed: {
    title: "Moved to another home",
    means: "Its home was lost or drained, or had dropped its context while it waited for a place; another replica had to read the history.",
    todo: "If the waiting room is engaged: see its card (fewer agents, or a CPU tier). Else look for engines that fail.",
  },
  unrouted: {
    title: "Not routed",
    means: "The engine's own balancer chose where this turn went: affinity was off, or the endpoint ignores the choice of a replica.",
    todo: "Switch affinity on. For an endpoint that ignores the choice (/v1/responses): run one vLLM server for each replica.",
  },
  engine_restarted: {
    title: "The engine restarted",
    means: "The engine's cache was empty after its restart.",
    todo: "Nothing, unless it was a crash: then read its log.",
  },
  other: { title: "Other", means: "The cached share fell and the cause could not be told.", todo: "Look at the example." },
};
