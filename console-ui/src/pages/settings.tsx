// The configuration in force, and where each setting comes from.

import { useState } from "preact/hooks";
import type { SettingItem, Settings as SettingsAnswer } from "../api/types";
import { texts } from "../i18n";
import { bySection } from "../logic/settings";
import { Badge, Card, Empty, LoadError, PageTitle, Scroll } from "../ui/basics";
import { useResource } from "../ui/hooks";

export function Settings() {
  const words = texts.value.settings;
  const { data, error, reload } = useResource<SettingsAnswer>("/api/settings");
  const [search, setSearch] = useState("");
  const wanted = search.trim().toLowerCase();
  const items = (data?.items ?? []).filter((item) => !wanted || item.key.toLowerCase().includes(wanted));
  return (
    <>
      <PageTitle title={words.title}>{words.title}</PageTitle>
      <p class="intro">{words.intro}</p>
      <LoadError error={error} retry={reload} />
      {data && (
        <>
          <div class="filters">
            <label class="field">
              <span class="field-label">{words.search}</span>
              <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
            </label>
            <span class="hint">
              {texts.value.common.labelled(words.file, "")}
              {data.file ? <span class="mono">{data.file}</span> : words.noFile}
            </span>
          </div>
          {items.length === 0 && <Empty>{words.empty}</Empty>}
          {items.length > 0 && (
            <Card>
              <Table items={items} />
            </Card>
          )}
        </>
      )}
    </>
  );
}

function Table(props: { items: SettingItem[] }) {
  const words = texts.value.settings;
  return (
    <Scroll label={words.title}>
      <table class="settings">
        <thead>
          <tr>
            <th scope="col">{words.key}</th>
            <th scope="col">{words.value}</th>
            <th scope="col">{words.source}</th>
          </tr>
        </thead>
        {bySection(props.items).map(([section, items]) => (
          <tbody key={section}>
            <tr>
              <th scope="rowgroup" colSpan={3} class="section">
                {section || words.other}
              </th>
            </tr>
            {items.map((item) => (
              <tr key={item.key}>
                <th scope="row" class="mono">
                  {item.key}
                </th>
                <td class="mono value">{show(item.value)}</td>
                <td>
                  {item.source === "default" ? <span class="muted">{words.fromDefault}</span> : <Badge tone="info">{item.source}</Badge>}
                </td>
              </tr>
            ))}
          </tbody>
        ))}
      </table>
    </Scroll>
  );
}

function show(value: unknown): string {
  if (value === null || value === undefined) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}
