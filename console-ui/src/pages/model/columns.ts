// The columns of the routing card, and its order.

import type { CachedShare, CachedShares, ReplicaRow, Routing } from "../../api/types";
import type { Texts } from "../../i18n/en";

export type ColumnKey =
  | "replica"
  | "inFlight"
  | "sticky"
  | "spilledIn"
  | "clientPinned"
  | "running"
  | "kvUsed"
  | "cachedHour"
  | "firstByte"
  | "hitRate"
  | "placed"
  | "rehomed"
  | "conversations"
  | "held"
  | "places";

// A row, with what of its prompts was cached in the last hour and how soon its answers began.
export interface Row extends ReplicaRow {
  hour: Pick<CachedShare, "cached_ratio" | "first_byte_p50_s" | "first_byte_p95_s">;
}

const NOTHING_KNOWN = { cached_ratio: null, first_byte_p50_s: null, first_byte_p95_s: null };

export function withShares(rows: readonly ReplicaRow[], shares: CachedShares | null): Row[] {
  const hours = new Map(shares?.replicas.map((share) => [share.replica, share]));
  return rows.map((row) => ({ ...row, hour: hours.get(row.replica) ?? NOTHING_KNOWN }));
}

const VALUE: Record<ColumnKey, (row: Row) => number | string | null> = {
  replica: (row) => row.replica,
  inFlight: (row) => row.in_flight,
  sticky: (row) => row.sticky,
  spilledIn: (row) => row.spilled_in,
  clientPinned: (row) => row.client_pinned,
  running: (row) => (row.running === null ? null : row.running + (row.waiting ?? 0)),
  kvUsed: (row) => row.kv_used_ratio,
  cachedHour: (row) => row.hour.cached_ratio,
  firstByte: (row) => row.hour.first_byte_p50_s,
  hitRate: (row) => row.prefix_hit_ratio,
  placed: (row) => row.placed,
  rehomed: (row) => row.rehomed_in,
  conversations: (row) => row.conversations,
  held: (row) => (row.kv_cache_tokens ? row.resident_tokens / row.kv_cache_tokens : null),
  places: (row) => row.residents ?? null,
};

interface ColumnWords {
  key: ColumnKey;
  head: string;
  // Stands below the head, for whoever does not point at it.
  note?: string;
  means?: string;
}

// Places are held, and shown, while the waiting room is engaged.
export function columnsOf(texts: Texts, routing: Pick<Routing, "admission" | "replicas">): ColumnWords[] {
  const means: Partial<Record<ColumnKey, string>> = texts.model.columnMeans;
  const notes: Partial<Record<ColumnKey, string>> = texts.model.columnNotes;
  const holds = routing.admission.engaged && routing.replicas.some((row) => row.residents != null);
  const keys = (Object.keys(VALUE) as ColumnKey[]).filter((key) => key !== "places" || holds);
  return keys.map((key) => {
    const [note, meaning] = [notes[key], means[key]];
    return { key, head: texts.model.columns[key], ...(note ? { note } : {}), ...(meaning ? { means: meaning } : {}) };
  });
}

// e0/2 before e0/10; what is not known comes last, whichever way.
export function sortRows(rows: readonly Row[], key: ColumnKey, down: boolean): Row[] {
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
