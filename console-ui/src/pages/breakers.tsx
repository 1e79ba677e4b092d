// What changes at the head of prompts, what it costs, and what to set.

import { query } from "../api/client";
import type { PrefixBreaker } from "../api/types";
import { count, percent } from "../format";
import { texts } from "../i18n";
import { byCause } from "../logic/breakers";
import { causeWords, clientName } from "../logic/words";
import { href, route, setQuery } from "../route";
import { Empty, LoadError, PageTitle, Scroll, Segmented } from "../ui/basics";
import { useResource } from "../ui/hooks";
import { chosenModel, ModelSelect } from "../ui/model-select";

const REFRESH_MS = 15_000;
const WINDOWS = ["1h", "24h", "7d"] as const;

export function Breakers() {
  const words = texts.value;
  const window = WINDOWS.find((name) => name === route.value.query.get("window")) ?? "24h";
  const { data, error, reload } = useResource<{ items: PrefixBreaker[] }>(
    `/api/prefix-breakers${query({ model: chosenModel(true), window })}`,
    REFRESH_MS,
  );
  const items = data?.items ?? [];
  return (
    <>
      <PageTitle title={words.breakers.title}>{words.breakers.title}</PageTitle>
      <p class="intro">{words.breakers.intro}</p>
      <div class="filters">
        <Segmented
          label={words.breakers.window}
          value={window}
          options={WINDOWS.map((value) => ({ value, label: words.breakers.windows[value] }))}
          onChange={(value) => setQuery({ window: value })}
        />
        <ModelSelect allowAll />
      </div>
      <LoadError error={error} retry={reload} />
      {!data && !error && <Empty>{words.common.loading}</Empty>}
      {data && items.length === 0 && <p class="all-well">{words.breakers.none}</p>}
      {items.length > 0 && <Table groups={byCause(items)} />}
    </>
  );
}

function Table(props: { groups: PrefixBreaker[][] }) {
  const words = texts.value;
  const heads = words.breakers.columns;
  return (
    <section class="card">
      <Scroll label={words.breakers.title}>
        <table class="breakers">
          <thead>
            <tr>
              <th scope="col">{heads.cause}</th>
              <th scope="col">{heads.client}</th>
              <th scope="col" class="right">
                {heads.turns}
              </th>
              <th scope="col" class="right">
                {heads.tokens}
              </th>
              <th scope="col" class="right">
                {heads.share}
              </th>
              <th scope="col">{heads.example}</th>
            </tr>
          </thead>
          {props.groups.map((group) => (
            <tbody key={group[0]!.cause}>
              {group.map((item, index) => (
                <Row key={item.client} item={item} rowsOfCause={index ? 0 : group.length} />
              ))}
            </tbody>
          ))}
        </table>
      </Scroll>
    </section>
  );
}

// What changed stands once, before all the clients that it happened to.
function Row(props: { item: PrefixBreaker; rowsOfCause: number }) {
  const words = texts.value;
  const { item } = props;
  const cause = causeWords(words, item.cause);
  return (
    <tr>
      {props.rowsOfCause > 0 && (
        <th scope="rowgroup" rowSpan={props.rowsOfCause} class="cause">
          <b>{cause.title}</b>
          <span class="cause-means">{cause.means}</span>
          <span class="cause-todo">→ {cause.todo}</span>
        </th>
      )}
      <td>{clientName(words, item.client)}</td>
      <td class="right">{count(item.turns)}</td>
      <td class="right strong">{count(item.recomputed_tokens)}</td>
      <td class="right">{percent(item.share_of_prompt, 1)}</td>
      <td>
        {item.example ? (
          <a class="mono" href={href(["conversations", item.example])}>
            {item.example.slice(0, 8)}
          </a>
        ) : (
          "–"
        )}
      </td>
    </tr>
  );
}
