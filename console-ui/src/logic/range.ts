// The time range of the Stats page: one of the usual windows up to now, or a free one; kept in the address.

export const WINDOWS = ["1h", "6h", "24h", "7d"] as const;
export type Window = (typeof WINDOWS)[number];

export interface Range {
  window: Window | "free";
  from: number | null;
  to: number | null;
}

const SECONDS: Record<Window, number> = { "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800 };

export function parseRange(query: URLSearchParams): Range {
  const from = Number(query.get("from"));
  const to = Number(query.get("to"));
  if (from > 0 && to > from) return { window: "free", from, to };
  const name = query.get("window") as Window | null;
  return { window: name && WINDOWS.includes(name) ? name : "1h", from: null, to: null };
}

export function rangeQuery(range: Range): Record<string, string> {
  if (range.window === "free") return { from: String(Math.floor(range.from ?? 0)), to: String(Math.ceil(range.to ?? 0)) };
  return { window: range.window };
}

// How often new points can be expected. What lies wholly in the past does not change.
export function refreshMs(range: Range, nowS: number): number {
  if (range.window === "free") return range.to !== null && range.to > nowS - 60 ? 30_000 : 0;
  return range.window === "1h" ? 10_000 : range.window === "6h" ? 30_000 : 60_000;
}

export const windowSeconds = (window: Window): number => SECONDS[window];

// For <input type="datetime-local">, which speaks local time.
export function toLocalInput(unixS: number): string {
  const date = new Date(unixS * 1000);
  const two = (n: number): string => String(n).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}T${two(date.getHours())}:${two(date.getMinutes())}`;
}

export function fromLocalInput(text: string): number | null {
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? null : ms / 1000;
}
