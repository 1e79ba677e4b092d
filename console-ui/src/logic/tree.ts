// Subagents as a tree: every conversation hangs below the one that started it.

export interface Linked {
  id: string;
  parent: string | null;
}

export interface Branch<T> {
  item: T;
  depth: number;
}

// Depth first, in the order of the list. What hangs below nobody in the list is a root; a ring (it cannot happen, but the
// page must not hang on it) is cut where it closes.
export function flatten<T extends Linked>(items: readonly T[]): Branch<T>[] {
  const known = new Set(items.map((item) => item.id));
  const below = new Map<string | null, T[]>();
  for (const item of items) {
    const parent = item.parent !== null && known.has(item.parent) ? item.parent : null;
    below.set(parent, [...(below.get(parent) ?? []), item]);
  }
  const seen = new Set<string>();
  const rows: Branch<T>[] = [];
  const walk = (list: readonly T[], depth: number): void => {
    for (const item of list) {
      if (seen.has(item.id)) continue;
      seen.add(item.id);
      rows.push({ item, depth });
      walk(below.get(item.id) ?? [], depth + 1);
    }
  };
  walk(below.get(null) ?? [], 0);
  walk(
    items.filter((item) => !seen.has(item.id)),
    0,
  );
  return rows;
}
