// A chart before it is painted: what it shows, and how it fits into so many pixels.

import type { Paint } from "../charts/theme";
import { group, mean, type Column } from "./series";

const LEAST_BAR_PX = 5;

export interface Line {
  label: string;
  color: Paint;
  kind: "bars" | "line" | "area";
  values: Column;
  // Below the zero line, on a scale of its own.
  down?: boolean;
  // What the read-out says, where values were stacked for painting.
  own?: Column;
}

export interface PlotSpec {
  times: number[];
  lines: Line[];
  from: number;
  to: number;
  stepS: number;
  format: (value: number | null) => string;
  // Fixed top of the scale (a ratio's 1, the number of replicas).
  top?: number;
  log?: boolean;
  upLabel?: string;
  downLabel?: string;
}

// A bar needs some pixels to be one. Where buckets are narrower, neighbours are joined: their mean, at fixed places in time
// so that bars do not change as time goes on.
export function widerBars(spec: PlotSpec, widthPx: number): PlotSpec {
  const bucketPx = (widthPx * spec.stepS) / Math.max(1, spec.to - spec.from);
  const many = Math.ceil(LEAST_BAR_PX / bucketPx);
  if (widthPx <= 0 || many <= 1 || !spec.lines.some((line) => line.kind === "bars")) return spec;
  const stepS = spec.stepS * many;
  const groups = group(spec.times, stepS);
  const join = (values: Column): Column => groups.map(({ members }) => mean(members.map((index) => values[index] ?? null)));
  const lines = spec.lines.map((line) => ({ ...line, values: join(line.values), ...(line.own ? { own: join(line.own) } : {}) }));
  return { ...spec, stepS, times: groups.map(({ t }) => t), lines };
}

export function lonely(values: Column): number[] {
  const hole = (index: number): boolean => (values[index] ?? null) === null;
  return values.flatMap((_, index) => (!hole(index) && hole(index - 1) && hole(index + 1) ? [index] : []));
}

// A stack is painted from its top, and read from its bottom.
export function legendOrder(lines: readonly Line[]): Line[] {
  return [...lines.filter((line) => line.own).reverse(), ...lines.filter((line) => !line.own)];
}
