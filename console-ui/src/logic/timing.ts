// Where a request's time went. The engine does not say per request how long its own queue was, so queue and prefill are
// one part: everything between leaving the waiting room and the first byte.

import type { Turn } from "../api/types";

const LEAST_TURNS = 4;
const NOTICED_S = 1;

export interface Parts {
  waited: number;
  first: number | null;
  decode: number | null;
}

export type Part = keyof Parts;

export function parts(turn: Pick<Turn, "waited_s" | "first_byte_s" | "duration_s">): Parts {
  if (turn.first_byte_s === null) return { waited: turn.waited_s, first: null, decode: null };
  return {
    waited: turn.waited_s,
    first: Math.max(0, turn.first_byte_s - turn.waited_s),
    decode: Math.max(0, turn.duration_s - turn.first_byte_s),
  };
}

// The part that took the most, if it took more than half.
export function mostly(turn: Pick<Turn, "waited_s" | "first_byte_s" | "duration_s">): Part | null {
  const split = parts(turn);
  if (split.first === null || split.decode === null || turn.duration_s <= 0) return null;
  const names: Part[] = ["waited", "first", "decode"];
  return names.find((name) => (split[name] ?? 0) > turn.duration_s / 2) ?? null;
}

// From how long on a turn of this conversation counts as slow: twice its usual time, and enough for a person to notice.
export function slowFrom(durations: readonly number[]): number {
  const sorted = [...durations].sort((a, b) => a - b);
  const middle = sorted[Math.floor(sorted.length / 2)];
  return middle === undefined || sorted.length < LEAST_TURNS ? Number.POSITIVE_INFINITY : Math.max(2 * middle, NOTICED_S);
}

// Cached and computed parts of a prompt; null where the engine did not say how long it was.
export function promptParts(turn: Pick<Turn, "prompt_tokens" | "cached_tokens">): { cached: number; computed: number } | null {
  if (turn.prompt_tokens === null) return null;
  const cached = Math.min(turn.cached_tokens ?? 0, turn.prompt_tokens);
  return { cached, computed: turn.prompt_tokens - cached };
}
