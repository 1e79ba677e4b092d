// Numbers and times for people, by the language that is shown. A dash stands for "not known"; 0 is 0.

import { computed } from "@preact/signals";
import { lang } from "./prefs";

export const UNKNOWN = "–";

type Num = number | null | undefined;

const locale = computed(() => (lang.value === "zh" ? "zh-Hans-CN" : "en-GB"));
const cache = new Map<string, Intl.NumberFormat>();
const dates = new Map<string, Intl.DateTimeFormat>();

function numberFormat(options: Intl.NumberFormatOptions): Intl.NumberFormat {
  const key = locale.value + JSON.stringify(options);
  let format = cache.get(key);
  if (!format) {
    format = new Intl.NumberFormat(locale.value, options);
    cache.set(key, format);
  }
  return format;
}

const known = (value: Num): value is number => value !== null && value !== undefined && Number.isFinite(value);

export function count(value: Num): string {
  return known(value) ? numberFormat({ maximumFractionDigits: 0 }).format(value) : UNKNOWN;
}

// 12,345 -> 12.3K: for places where the size matters and the last digit does not.
export function compact(value: Num): string {
  if (!known(value)) return UNKNOWN;
  const digits = Math.abs(value) < 1000 ? 0 : 1;
  // Chinese compact numbers jump in 万; token counts are read in thousands everywhere, also there.
  const scaled =
    Math.abs(value) >= 1e9
      ? [value / 1e9, "G"]
      : Math.abs(value) >= 1e6
        ? [value / 1e6, "M"]
        : Math.abs(value) >= 1e3
          ? [value / 1e3, "k"]
          : [value, ""];
  return numberFormat({ maximumFractionDigits: digits }).format(scaled[0] as number) + (scaled[1] as string);
}

export function rate(value: Num): string {
  if (!known(value)) return UNKNOWN;
  if (value !== 0 && Math.abs(value) < 10) return numberFormat({ minimumFractionDigits: 1, maximumFractionDigits: 1 }).format(value);
  return Math.abs(value) >= 10_000 ? compact(value) : count(value);
}

// Requests per second are often far below one.
export function axisRate(value: Num): string {
  if (!known(value) || value === 0) return known(value) ? "0" : UNKNOWN;
  return numberFormat({ maximumSignificantDigits: 2 }).format(value);
}

export function decimal(value: Num, digits: number): string {
  return known(value) ? numberFormat({ minimumFractionDigits: digits, maximumFractionDigits: digits }).format(value) : UNKNOWN;
}

export function percent(ratio: Num, digits = 0): string {
  return known(ratio)
    ? numberFormat({ style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits }).format(ratio)
    : UNKNOWN;
}

// 0.045 -> 45 ms, 3.2 -> 3.2 s, 75 -> 1 min 15 s
export function seconds(value: Num): string {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0 s";
  if (value < 0.0995) return `${numberFormat({ maximumFractionDigits: value < 0.01 ? 1 : 0 }).format(value * 1000)} ms`;
  if (value < 10) return `${decimal(value, value < 1 ? 2 : 1)} s`;
  if (value < 60) return `${decimal(value, 0)} s`;
  return span(value);
}

// Rough lengths of time: two units are enough.
export function span(valueS: Num): string {
  if (!known(valueS)) return UNKNOWN;
  const whole = Math.max(0, Math.floor(valueS));
  const zh = lang.value === "zh";
  const units: [number, string][] = zh
    ? [
        [86_400, " 天"],
        [3600, " 小时"],
        [60, " 分"],
        [1, " 秒"],
      ]
    : [
        [86_400, " d"],
        [3600, " h"],
        [60, " min"],
        [1, " s"],
      ];
  const first = units.findIndex(([size]) => whole >= size);
  if (first < 0) return `0${units[3]![1]}`;
  const [size, name] = units[first]!;
  const major = `${Math.floor(whole / size)}${name}`;
  const next = units[first + 1];
  const minor = next ? Math.floor((whole % size) / next[0]) : 0;
  return next && minor ? `${major} ${minor}${next[1]}` : major;
}

// Making a formatter takes a hundred times as long as using it.
function date(unixS: number, options: Intl.DateTimeFormatOptions): string {
  const key = locale.value + JSON.stringify(options);
  let format = dates.get(key);
  if (!format) {
    format = new Intl.DateTimeFormat(locale.value, { hourCycle: "h23", ...options });
    dates.set(key, format);
  }
  return format.format(unixS * 1000);
}

export function clock(unixS: Num): string {
  return known(unixS) ? date(unixS, { hour: "2-digit", minute: "2-digit", second: "2-digit" }) : UNKNOWN;
}

export function dateTime(unixS: Num): string {
  return known(unixS) ? date(unixS, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" }) : UNKNOWN;
}

export function clockShort(unixS: number): string {
  return date(unixS, { hour: "2-digit", minute: "2-digit" });
}

export function axisDay(unixS: number): string {
  return date(unixS, { weekday: "short", day: "numeric" });
}

// The clock alone for today, the date with it otherwise.
export function when(unixS: Num): string {
  if (!known(unixS)) return UNKNOWN;
  const today = new Date().toDateString() === new Date(unixS * 1000).toDateString();
  return today ? clock(unixS) : dateTime(unixS);
}

// Accepts what the API uses for moments: Unix seconds or ISO 8601.
export function unix(value: number | string | null | undefined): number | null {
  if (typeof value === "number") return value;
  if (!value) return null;
  const parsed = Date.parse(value);
  return Number.isNaN(parsed) ? null : parsed / 1000;
}

export function bytes(value: Num): string {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${numberFormat({ maximumFractionDigits: size < 10 && unit ? 1 : 0 }).format(size)} ${units[unit]}`;
}
