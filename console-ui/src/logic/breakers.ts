// What breaks prefixes, one group for each cause: the costliest cause first, and in it the costliest client.

import type { PrefixBreaker } from "../api/types";

export function byCause(items: readonly PrefixBreaker[]): PrefixBreaker[][] {
  const groups = new Map<string, PrefixBreaker[]>();
  for (const item of items) groups.set(item.cause, [...(groups.get(item.cause) ?? []), item]);
  const cost = (group: readonly PrefixBreaker[]): number => group.reduce((sum, item) => sum + item.recomputed_tokens, 0);
  return [...groups.values()]
    .map((group) => group.sort((a, b) => b.recomputed_tokens - a.recomputed_tokens))
    .sort((a, b) => cost(b) - cost(a));
}
