// Points of the API to columns of a chart. What was not measured stays a hole: it is never drawn as 0 and never bridged.

import type { Point, Series } from "../api/types";

export type Column = (number | null)[];

// One time per bucket from the first to the last point, with holes where buckets are missing, so that a line breaks there
// and a bar's width is that of one bucket.
export function align(series: Series): { times: number[]; points: (Point | null)[] } {
  const step = series.step_s;
  const times: number[] = [];
  const points: (Point | null)[] = [];
  for (const point of series.points) {
    const last = times.at(-1);
    if (last !== undefined && step > 0 && point.t - last > 1.5 * step) {
      // Two holes are enough to break a line, however long the gap is; the axis is in time and shows its length.
      for (const t of point.t - last > 2.5 * step ? [last + step, point.t - step] : [last + step]) {
        times.push(t);
        points.push(null);
      }
    }
    times.push(point.t);
    points.push(point);
  }
  return { times, points };
}

export function column(points: readonly (Point | null)[], name: string): Column {
  return points.map((point) => point?.[name] ?? null);
}

// Sum of several columns; a hole where none of them is known.
export function sum(...columns: Column[]): Column {
  const first = columns[0] ?? [];
  return first.map((_, index) => {
    const known = columns.map((values) => values[index] ?? null).filter((value): value is number => value !== null);
    return known.length ? known.reduce((total, value) => total + value, 0) : null;
  });
}

// Layers of a stack, the top one first: each value is the sum of its own and all below, so drawing in this order leaves
// every layer visible.
export function stack(layers: readonly Column[]): Column[] {
  return layers.map((_, index) => sum(...layers.slice(index)));
}

export function largest(...columns: Column[]): number {
  let most = 0;
  for (const values of columns) for (const value of values) if (value !== null && value > most) most = value;
  return most;
}

export const hasData = (columns: readonly Column[]): boolean => columns.some((values) => values.some((value) => value !== null));

// Labels of an axis from 0 to a round top: 2 and 4 in quarters, 5 and 10 in fifths, so that each is round as well.
export function evenSplits(top: number): number[] {
  const mantissa = top / 10 ** Math.floor(Math.log10(top) + 1e-9);
  const parts =
    Math.abs(mantissa - 5) < 1e-6 || (Math.abs(mantissa - 1) < 1e-6 && top !== 1) || Math.abs(mantissa - 2.5) < 1e-6
      ? 5
      : top === 3
        ? 3
        : 4;
  return Array.from({ length: parts + 1 }, (_, index) => (top * index) / parts);
}

// Times by the wider bucket that they fall into.
export function group(times: readonly number[], stepS: number): { t: number; members: number[] }[] {
  const groups: { t: number; members: number[] }[] = [];
  times.forEach((time, index) => {
    const t = Math.floor(time / stepS + 1e-9) * stepS;
    const last = groups.at(-1);
    if (last?.t === t) last.members.push(index);
    else groups.push({ t, members: [index] });
  });
  return groups;
}

// Of what is known; a hole where nothing is.
export function mean(values: readonly (number | null)[]): number | null {
  const known = values.filter((value): value is number => value !== null);
  return known.length ? known.reduce((total, value) => total + value, 0) / known.length : null;
}

// Where the newest known values stand; null: there are none.
export function latestKnown(columns: readonly Column[]): number | null {
  const index = Math.max(-1, ...columns.map((values) => values.findLastIndex((value) => value !== null)));
  return index < 0 ? null : index;
}

// The next round number at or above: 1, 2, 2.5, 5 times a power of ten.
export function roundUp(value: number): number {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [1, 2, 2.5, 5, 10].find((step) => value <= step * power * (1 + 1e-9)) ?? 10;
  return factor * power;
}
