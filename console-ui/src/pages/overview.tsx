// What is served, how it stands, and what to do about what is not well: the page for the second screen.

import { tokens } from "../charts/specs";
import { Chart } from "../charts/chart";
import type { ModelDetail, ModelState, OverviewModel, Series } from "../api/types";
import { apiUrl, query } from "../api/client";
import { compact, count, percent, rate } from "../format";
import { texts } from "../i18n";
import { snapshot } from "../live";
import { href } from "../route";
import { Badge, Dot, Empty, Note, English, PageTitle, type Tone } from "../ui/basics";
import { useResource } from "../ui/hooks";
import { Warnings } from "../ui/warnings";

export const STATE_TONE: Record<ModelState, Tone> = { ok: "ok", warning: "warning", fault: "fault", starting: "info" };
const REFRESH_MS = 10_000;

export function Overview() {
  const words = texts.value;
  const now = snapshot.value;
  return (
    <>
      <PageTitle title={words.overview.title}>{words.overview.title}</PageTitle>
      {!now && <Empty>{words.common.loading}</Empty>}
      {now?.overview.ledger_trouble && (
        <Note tone="warning">
          {words.overview.ledger} <English>{now.overview.ledger_trouble}</English>
        </Note>
      )}
      {now && now.overview.models.length === 0 && <Empty>{words.overview.noModels}</Empty>}
      {now?.overview.models.map((model) => (
        <ModelCard key={model.name} model={model} detail={now.models.find((other) => other.name === model.name) ?? null} />
      ))}
      {now && now.overview.models.length > 0 && <HourOfTokens />}
    </>
  );
}

function ModelCard(props: { model: OverviewModel; detail: ModelDetail | null }) {
  const words = texts.value;
  const { model, detail } = props;
  const where = href(["models", model.name]);
  return (
    <section class="card model-card" aria-label={model.name}>
      <header class="card-head">
        <h2>
          <a href={where}>{model.name}</a>
        </h2>
        <div class="card-aside">
          <span class={`state ${STATE_TONE[model.state]}`}>
            <Dot tone={STATE_TONE[model.state]} /> {words.state.model[model.state]}
          </span>
          {detail?.routing.admission.engaged && (
            <a href={waitingOf(model.name)}>
              <Badge tone="warning">{words.room.chip(count(detail.routing.admission.waiting))}</Badge>
            </a>
          )}
          <span class="muted">{words.overview.ready(count(model.replicas_ready), count(model.replicas))}</span>
        </div>
      </header>
      <dl class="figures-row">
        <Figure
          label={words.overview.inFlight}
          value={count(model.in_flight)}
          note={model.waiting ? words.overview.waiting(count(model.waiting)) : ""}
        />
        <Figure
          label={words.overview.promptRate}
          value={rate(model.prompt_tokens_per_s)}
          note={model.cached_tokens_per_s === null ? "" : words.overview.cachedOf(rate(model.cached_tokens_per_s))}
        />
        <Figure label={words.overview.completionRate} value={rate(model.completion_tokens_per_s)} />
        <Figure label={words.overview.cachedHour} value={percent(model.cached_ratio_1h)} />
        <Figure label={words.overview.conversations} value={count(model.conversations_live)} />
        <Figure
          label={words.overview.roomFor}
          value={count(detail?.room_for)}
          note={
            detail?.room_for == null
              ? ""
              : detail.mean_context_tokens === null
                ? words.overview.roomUnit
                : `${words.overview.roomUnit} ${words.model.meanContext(compact(detail.mean_context_tokens))}`
          }
        />
      </dl>
      {model.warnings.length > 0 ? <Warnings warnings={model.warnings} /> : <p class="all-well">{words.overview.noWarnings}</p>}
      {detail && nobodyCame(detail) && (
        <p class="hint">
          {words.overview.noConversations} <a href={href(["connect"], { model: model.name })}>{words.overview.connectFirst}</a>
        </p>
      )}
    </section>
  );
}

// Since the warden's start, and before it: homes outlive a restart.
function nobodyCame(model: ModelDetail): boolean {
  const { decisions, refused } = model.routing;
  return model.conversations === 0 && refused === 0 && Object.values(decisions).every((count) => count === 0);
}

// The list of those that wait.
export function waitingOf(model: string): string {
  return href(["conversations"], { model, state: "waiting" });
}

export function Figure(props: { label: string; value: string; note?: string; link?: string }) {
  return (
    <div class="figure">
      <dt>{props.label}</dt>
      <dd>
        <span class="figure-value">{props.link ? <a href={props.link}>{props.value}</a> : props.value}</span>
        {props.note && <span class="figure-note">{props.note}</span>}
      </dd>
    </div>
  );
}

function HourOfTokens() {
  const path = `/api/stats/tokens${query({ window: "1h" })}`;
  const { data } = useResource<Series>(path, REFRESH_MS);
  const words = texts.value.stats;
  return (
    <Chart
      title={words.tokens}
      note={data ? cachedWords(data, "1h") : ""}
      spec={data ? tokens(texts.value, data) : null}
      csv={apiUrl(`${path}&format=csv`)}
      fileName="tokens-1h"
      height={220}
    />
  );
}

export function cachedWords(series: Series, window: keyof typeof texts.value.stats.windows): string {
  const words = texts.value.stats;
  const ratio = series.cached_ratio ?? null;
  return ratio === null ? words.cachedUnknown(words.windows[window]) : words.cachedOver(percent(ratio), words.windows[window]);
}
