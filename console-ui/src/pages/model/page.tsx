// One model: what each of its replicas does, and why.

import type { ModelState } from "../../api/types";
import { count } from "../../format";
import { texts } from "../../i18n";
import { modelOf, snapshot } from "../../live";
import { href } from "../../route";
import { Dot, Empty, PageTitle } from "../../ui/basics";
import { Warnings } from "../../ui/warnings";
import { STATE_TONE } from "../overview";
import { CapacityCard } from "./capacity";
import { Engines } from "./engines";
import { RoutingCard } from "./routing-card";
import { SettingsForm } from "./settings-form";
import { WaitingRoomCard } from "./waiting-room";

export function ModelPage(props: { name: string }) {
  const words = texts.value;
  const now = snapshot.value;
  const model = modelOf(props.name);
  if (!now || !model) {
    return (
      <>
        <PageTitle title={props.name}>{props.name}</PageTitle>
        <Empty>{now ? words.model.gone : words.model.starting}</Empty>
      </>
    );
  }
  const line = now.overview.models.find((other) => other.name === props.name);
  const state: ModelState = line?.state ?? "ok";
  const warnings = line?.warnings ?? model.warnings;
  const query = { model: model.name };
  return (
    <>
      <PageTitle
        title={model.name}
        aside={
          <span class={`state ${STATE_TONE[state]}`}>
            <Dot tone={STATE_TONE[state]} /> {words.state.model[state]}
          </span>
        }
      >
        {model.name}
      </PageTitle>
      <p class="subtitle">
        {[
          ...(model.aliases.length ? [`${words.model.aliases} ${model.aliases.join(", ")}`] : []),
          ...(model.max_model_len === null ? [] : [words.model.context(count(model.max_model_len))]),
        ].join(" · ")}
      </p>
      <nav class="page-links" aria-label={model.name}>
        <a href={href(["conversations"], query)}>{words.nav.conversations}</a>
        <a href={href(["stats"], query)}>{words.nav.stats}</a>
        <a href={href(["breakers"], query)}>{words.nav.breakers}</a>
        <a href={href(["requests"], query)}>{words.nav.requests}</a>
        <a href={href(["connect"], query)}>{words.nav.connect}</a>
      </nav>
      {warnings.length > 0 && <Warnings warnings={warnings} />}
      <RoutingCard model={model} takenAt={now.taken_at} />
      <div class="two">
        <CapacityCard model={model} />
        <SettingsForm model={model} />
      </div>
      <WaitingRoomCard model={model} />
      <Engines model={model} takenAt={now.taken_at} />
    </>
  );
}
