// The columns of the routing card, and its order.

import type { ReplicaRow } from "../../api/types";
import type { Texts } from "../../i18n/en";

export type ColumnKey =
  | "replica"
  | "inFlight"
  | "sticky"
  | "spilledIn"
  | "clientPinned"
  | "running"
  | "kvUsed"
  | "hitRate"
  | "placed"
  | "rehomed"
  | "conversations"
  | "held";

const VALUE: Record<ColumnKey, (row: ReplicaRow) => number | string | null> = {
  replica: (row) => row.replica,
  inFlight: (row) => row.in_flight,
  sticky: (row) => row.sticky,
  spilledIn: (row) => row.spilled_in,
  clientPinned: (row) => row.client_pinned,
  running: (row) => (row.running === null ? null : row.running + (row.waiting ?? 0)),
  kvUsed: (row) => row.kv_used_ratio,
  hitRate: (row) => row.prefix_hit_ratio,
  placed: (row) => row.placed,
  rehomed: (row) => row.rehomed_in,
  conversations: (row) => row.conversations,
  held: (row) => (row.kv_cache_tokens ? row.resident_tokens / row.kv_cache_tokens : null),
};

export const COLUMN_KEYS = Object.keys(VALUE) as ColumnKey[];

export function columnsOf(texts: Texts): { key: ColumnKey; head: string; means?: string }[] {
  const means: Partial<Record<ColumnKey, string>> = texts.model.columnMeans;
  return COLUMN_KEYS.map((key) => {
    const meaning = means[key];
    return { key, head: texts.model.columns[key], ...(meaning ? { means: meaning } : {}) };
  });
}

// e0/2 before e0/10; what is not known comes last, whichever way.
export function sortRows(rows: readonly ReplicaRow[], key: ColumnKey, down: boolean): ReplicaRow[] {
  const value = VALUE[key];
  const direction = down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [left, right] = [value(a), value(b)];
    if (left === null || right === null) return Number(left === null) - Number(right === null);
    const order =
      typeof left === "number" && typeof right === "number"
        ? left - right
        : String(left).localeCompare(String(right), "en", { numeric: true });
    return order ? order * direction : a.replica.localeCompare(b.replica, "en", { numeric: true });
  });
}
