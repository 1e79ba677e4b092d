// Lists that come in pages and change while they are read.

import type { Conversation } from "../api/types";

// A turn that ended is written half a second later, and lists are asked for every two seconds.
const WRITTEN_AFTER_S = 5;

// Newer first rows over the ones that are there. While held (the pointer is on the list) rows keep their places and only
// their contents change, so that nothing moves away under a click.
export function merge<T>(shown: readonly T[], fresh: readonly T[], id: (row: T) => string, held: boolean): T[] {
  const byId = new Map(fresh.map((row) => [id(row), row]));
  if (held && shown.length) return shown.map((row) => byId.get(id(row)) ?? row);
  // Where only the first page was there, the new one replaces it; where more was read, what slid down from it is kept.
  if (shown.length <= fresh.length) return [...fresh];
  return [...fresh, ...shown.filter((row) => !byId.has(id(row)))];
}

// The next page after the ones that are there, without the rows that slid from one page to the next meanwhile.
export function append<T>(shown: readonly T[], next: readonly T[], id: (row: T) => string): T[] {
  const known = new Set(shown.map(id));
  return [...shown, ...next.filter((row) => !known.has(id(row)))];
}

// Whether a conversation had turns before the listed ones. Not missing: turns that run, and one that ended just now.
export function olderAreGone(row: Pick<Conversation, "turns" | "in_flight" | "last_used">, listed: number, nowS: number): boolean {
  const justEnded = nowS - (row.last_used ?? 0) < WRITTEN_AFTER_S ? 1 : 0;
  return listed < row.turns - row.in_flight - justEnded;
}
