// Which replica is the busiest, and why, in words.

import type { Routing } from "../api/types";
import { count, percent } from "../format";
import type { Texts } from "../i18n/en";

export function busiestSentence(texts: Texts, routing: Routing): string | null {
  const words = texts.model;
  const rows = routing.replicas;
  const all = rows.reduce((sum, row) => sum + row.in_flight, 0);
  if (!rows.length) return null;
  if (!routing.affinity) return busiestOfEngine(texts, routing);
  if (all === 0) return words.quiet;
  const first = rows[0]!;
  if (rows.length > 1 && rows.every((row) => row.in_flight === first.in_flight)) return words.even(count(first.in_flight));
  const top = rows.reduce((most, row) => (row.in_flight > most.in_flight ? row : most), first);
  let sentence = words.busiest(top.replica, count(top.in_flight), percent(top.in_flight / all));
  if (top.conversations && top.kv_cache_tokens)
    sentence += words.busiestHolds(count(top.conversations), percent(top.resident_tokens / top.kv_cache_tokens));
  if (top.spilled_in) sentence += words.busiestSpill(count(top.spilled_in));
  const elsewhere = rows.some((row) => row.in_flight < top.in_flight);
  if (elsewhere && top.in_flight > routing.spill_threshold) sentence += words.busiestAbove;
  return sentence;
}

// Without affinity nothing is in flight at a replica by our count: only the engine knows where its requests are.
function busiestOfEngine(texts: Texts, routing: Routing): string | null {
  const load = (row: Routing["replicas"][number]) => (row.running ?? 0) + (row.waiting ?? 0);
  const top = routing.replicas.reduce((most, row) => (load(row) > load(most) ? row : most));
  return load(top) ? texts.model.busiestUnrouted(top.replica, count(load(top))) : texts.model.quiet;
}
