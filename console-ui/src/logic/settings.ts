// Settings by the table of the file that they stand in: "client.port" is in "client", "models.qwen.routing.affinity" in
// "models.qwen.routing".

import type { SettingItem } from "../api/types";

export function bySection(items: readonly SettingItem[]): [string, SettingItem[]][] {
  const sections = new Map<string, SettingItem[]>();
  for (const item of items) {
    const section = item.key.includes(".") ? item.key.slice(0, item.key.lastIndexOf(".")) : "";
    sections.set(section, [...(sections.get(section) ?? []), item]);
  }
  return [...sections];
}
