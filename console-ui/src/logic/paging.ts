// Lists that come in pages and change while they are read.

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
