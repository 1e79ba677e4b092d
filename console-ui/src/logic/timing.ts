// Where a request's time went. The engine does not say per request how long its own queue was, so queue and prefill are
// one part: everything between leaving the waiting room and the first byte. An answer that was not streamed comes in one
// piece, and one that never came has no first byte: then nothing divides the time, and nothing is made up.

import type { Turn } from "../api/types";

const LEAST_TURNS = 4;
const NOTICED_S = 1;
// A shorter wait is the handing over from one part of the warden to another.
const NOTICED_WAIT_S = 0.05;

export const waitIsNoticed = (turn: Pick<Turn, "waited_s">): boolean => turn.waited_s >= NOTICED_WAIT_S;

export const PARTS = ["waited", "first", "decode", "whole", "unanswered"] as const;
export type Part = (typeof PARTS)[number];

type Timed = Pick<Turn, "waited_s" | "first_byte_s" | "duration_s" | "streamed">;

// Seconds of each part that there is, in the order of time.
export function parts(turn: Timed): { name: Part; seconds: number }[] {
  const { waited_s: waited, first_byte_s: first, duration_s: duration } = turn;
  const held = waitIsNoticed(turn) ? [{ name: "waited" as const, seconds: waited }] : [];
  const rest = Math.max(0, duration - waited);
  if (first === null) return rest > 0 || !held.length ? [...held, { name: "unanswered", seconds: rest }] : held;
  if (turn.streamed === false) return [...held, { name: "whole", seconds: rest }];
  return [
    ...held,
    { name: "first", seconds: Math.max(0, first - waited) },
    { name: "decode", seconds: Math.max(0, duration - Math.max(first, waited)) },
  ];
}

// The part that took the most, if it took more than half; null also where nothing can be said.
export function mostly(turn: Timed): Exclude<Part, "unanswered"> | null {
  if (turn.duration_s <= 0) return null;
  const found = parts(turn).find((part) => part.seconds > turn.duration_s / 2);
  return found && found.name !== "unanswered" ? found.name : null;
}

// From how long on a turn of this conversation counts as slow: twice its usual time, and enough for a person to notice.
export function slowFrom(durations: readonly number[]): number {
  const sorted = [...durations].sort((a, b) => a - b);
  const middle = sorted[Math.floor(sorted.length / 2)];
  return middle === undefined || sorted.length < LEAST_TURNS ? Number.POSITIVE_INFINITY : Math.max(2 * middle, NOTICED_S);
}

export interface PromptParts {
  prompt: number;
  // null: the engine did not say how much was cached.
  cached: number | null;
  computed: number | null;
}

// null where the engine did not say how long the prompt was.
export function promptParts(turn: Pick<Turn, "prompt_tokens" | "cached_tokens">): PromptParts | null {
  const prompt = turn.prompt_tokens;
  if (prompt === null) return null;
  if (turn.cached_tokens === null) return { prompt, cached: null, computed: null };
  const cached = Math.min(turn.cached_tokens, prompt);
  return { prompt, cached, computed: prompt - cached };
}

// A stream that was cut counts 0 until its end, where the count would have stood: that 0 is no count.
export function completionTokens(turn: Pick<Turn, "completion_tokens" | "outcome">): number | null {
  return turn.outcome !== "ok" && !turn.completion_tokens ? null : turn.completion_tokens;
}
