// The waiting room in words: how it stands, and why, from the code and the numbers that the API sends.

import type { Admission, Routing, TierAdvice } from "../api/types";
import { compact, decimal, percent, seconds } from "../format";
import { ROOM_WHYS, type RoomNumbers, type RoomWhy } from "../i18n/codes";
import type { Texts } from "../i18n/en";

export type RoomState = "engaged" | "open" | "off";

type Seen = Pick<Routing, "affinity" | "admission">;

// Places are held for conversations that have a home, so without affinity there is no room.
export function roomState(routing: Seen): RoomState {
  if (!routing.affinity || routing.admission.mode === "off") return "off";
  return routing.admission.engaged ? "engaged" : "open";
}

// A code of a later warden is told by that warden's own sentence, which is English.
export function roomSentence(texts: Texts, routing: Seen): { text: string; english: boolean } {
  const words = texts.room.why;
  const { admission } = routing;
  if (!routing.affinity) return { text: words.noAffinity, english: false };
  if (admission.mode === "off") return { text: words.off, english: false };
  const code = admission.why_code ?? (admission.engaged ? "engaged" : "open");
  if (!(ROOM_WHYS as readonly string[]).includes(code)) return { text: admission.why ?? "", english: true };
  return { text: words.code[code as RoomWhy](numbers(admission)), english: false };
}

function numbers(admission: Admission): RoomNumbers {
  return {
    demand: admission.demand_ratio == null ? null : percent(admission.demand_ratio),
    over: (admission.demand_ratio ?? 0) > 1,
    gap: admission.gap_s == null ? null : seconds(admission.gap_s),
    tier: admission.tier_tokens ? compact(admission.tier_tokens) : null,
  };
}

export function tierSentence(texts: Texts, advice: TierAdvice): string {
  const { needed_gib_per_replica: gib, needed_tokens_per_replica: tokens } = advice;
  return texts.room.tier(compact(tokens), gib === null ? null : decimal(gib, gib < 10 ? 1 : 0));
}
