// English words for the waiting room.

import type { Preference } from "../api/types";
import type { RoomNumbers, RoomWhy } from "./codes";

type Words = (n: RoomNumbers) => string;

const need = (n: RoomNumbers, unknown: string): string =>
  n.demand === null ? unknown : `the conversations in use need ${n.demand} of what the caches hold`;

export const room = {
  title: "Waiting room",
  state: { engaged: "engaged", open: "open: nobody is held", off: "off" },
  waiting: "Waiting",
  longest: (time: string) => `longest ${time}`,
  demand: "Demand",
  demandNote: "of what the caches hold",
  places: "Places held",
  placesNote: (tokens: string) => `${tokens} tokens`,
  placesOf: (tokens: string, all: string) => `${tokens} of ${all} tokens`,
  roomFor: "Room for about",
  roomUnit: "more",
  expired: "Went at the longest wait",
  expiredNote: "since the warden's start",
  chip: (n: string) => `waiting room engaged, ${n} waiting`,
  why: {
    code: {
      engaged: (n) =>
        `Engaged: ${need(n, "the conversations in use no longer fit the caches")}. So many run as keep their context, and the others wait here for a place instead of pushing them out.`,
      emptying: (n) => `Emptying: ${need(n, "the conversations in use fit the caches")}, so all fit again, and the room opens in a moment.`,
      open: (n) =>
        `Open: ${need(n, "the conversations in use fit the caches")}${n.over ? ", too little above to hold anybody" : ""}. Every request goes at once.`,
      settling: (n) =>
        `Open: ${need(n, "the conversations in use do not fit the caches")}, ${n.gap === null ? "but it is not known yet how long agents pause between their turns" : "and the room engages if that stays so for some seconds"}.`,
      no_capacity: () => "Open: the engines do not say how much their caches hold, so nobody is held.",
      gaps: (n) =>
        `Open: ${need(n, "the conversations in use do not fit the caches")}, but agents pause between their turns (a quarter of the pauses exceeds ${n.gap ?? "–"}): held places would stand empty.`,
      kept: (n) =>
        `Open: ${need(n, "the conversations in use do not fit the caches")}, but turns find their context all the same${n.tier ? `; behind the caches a CPU tier holds ${n.tier} tokens` : ""}.`,
    } satisfies Record<RoomWhy, Words> as Record<RoomWhy, Words>,
    off: "Off: every request goes at once, also when the conversations no longer fit the caches.",
    noAffinity: "Affinity is off, so no conversation has a place to wait for: every request goes at once.",
  },
  tier: (tokens: string, gib: string | null) =>
    `A CPU tier of ${gib === null ? `${tokens} tokens` : `about ${gib} GiB (${tokens} tokens)`} for each replica would keep what the caches drop, and nobody would have to wait: kv_offload_gib under [models.engine], or vLLM's --kv-offloading-size.`,
  mode: "Admission",
  modes: { auto: "Automatic", off: "Off" },
  modeMeans: {
    auto: "Holds requests back only while the conversations in use do not fit the caches.",
    off: "Never holds a request back.",
  },
  prefer: "Prefer",
  prefers: { balanced: "Balanced", median: "Median", tail: "Tail" } satisfies Record<Preference, string> as Record<Preference, string>,
  preferMeans: {
    balanced: "Most turns go at once, and the others wait a bounded time. More output than without.",
    median: "Residents keep their places until they end: the usual turn is fast and output the highest, but newcomers wait longest.",
    tail: "Everybody waits about the same: the slowest turn is the shortest, the usual one slower.",
  } satisfies Record<Preference, string> as Record<Preference, string>,
  maxWait: "Longest wait (s)",
  maxWaitHint:
    "Who has waited so long goes to its replica at once, never refused. 1 to 270: clients give up at 300, and an answer needs time to begin.",
  columns: { places: "Places" },
  placesMean: "Conversations that hold a place here by the waiting room's books, and the context those places hold.",
};
