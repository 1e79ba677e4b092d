// The engines of a model: what each is, how its process stands, how a start-up or a restart goes.

import { useState } from "preact/hooks";
import { mayChange } from "../../api/client";
import type { Engine, EngineProcess, ModelDetail, Operation, ReplicaRow } from "../../api/types";
import { count, seconds, span, when } from "../../format";
import { texts } from "../../i18n";
import { crashWords, processWords } from "../../logic/engines";
import { href } from "../../route";
import { Badge, Button, Card, CopyButton, Dot, English, Meter, type Tone } from "../../ui/basics";
import { Ask, leavesNone, type Question } from "./ask";
import { cancelOperation, restart, rollingRestart } from "./commands";

export function Engines(props: { model: ModelDetail; takenAt: number }) {
  const words = texts.value.model;
  const { model } = props;
  const [question, setQuestion] = useState<Question | null>(null);
  const running = model.operation?.state === "running";
  const locked = !mayChange() || running;
  const askRolling = (): void =>
    setQuestion({
      title: words.confirmRolling,
      text: words.confirmRollingText,
      action: words.rolling,
      outage: leavesNone(model.routing.replicas, () => model.engines.length === 1),
      then: (allow) => void rollingRestart(model.name, allow),
    });
  const askOne = (engine: string): void => {
    const isOfIt = (row: ReplicaRow): boolean => row.replica.startsWith(`${engine}/`);
    const isDown = model.routing.replicas.filter(isOfIt).every((row) => row.state === "down");
    setQuestion({
      title: words.confirmRestart(engine),
      text: isDown ? words.confirmRestartDownText : words.confirmRestartText,
      action: words.restart,
      outage: leavesNone(model.routing.replicas, isOfIt),
      then: (allow) => void restart(model.name, engine, allow),
    });
  };
  return (
    <Card
      title={words.engines}
      class="engines-card"
      aside={
        model.engines.some((engine) => engine.launched) && (
          <Button onClick={askRolling} disabled={locked}>
            {words.rolling}
          </Button>
        )
      }
    >
      {model.operation && isNews(model.operation, props.takenAt) && (
        <OperationLine name={model.name} operation={model.operation} takenAt={props.takenAt} />
      )}
      <div class="engine-list">
        {model.engines.map((engine) => (
          <EngineItem key={engine.engine} engine={engine} takenAt={props.takenAt} locked={locked} onRestart={() => askOne(engine.engine)} />
        ))}
      </div>
      {question && <Ask question={question} onClose={() => setQuestion(null)} />}
    </Card>
  );
}

const NEWS_S = 600;

// One that ended well is news for a while; one that failed waits for somebody.
function isNews(operation: Operation, takenAt: number): boolean {
  return operation.state === "failed" || takenAt - (operation.ended_at ?? takenAt) < NEWS_S;
}

function OperationLine(props: { name: string; operation: Operation; takenAt: number }) {
  const words = texts.value.model;
  const { operation } = props;
  const running = operation.state === "running";
  const tone: Tone = operation.state === "failed" ? "fault" : operation.state === "done" ? "ok" : "info";
  return (
    <div class={`note ${tone} operation`} role="status">
      <div>
        <strong>{texts.value.common.labelled(words.opTitle[operation.kind], words.opState[operation.state])}</strong>{" "}
        <span class="muted">{when(operation.ended_at ?? operation.started_at)}</span>
      </div>
      {operation.engines.length > 1 && (
        <Meter
          wide
          ratio={operation.done.length / operation.engines.length}
          tone="blue"
          text={words.opProgress(count(operation.done.length), count(operation.engines.length))}
          label={words.opTitle[operation.kind]}
        />
      )}
      {running && operation.engine && operation.step && (
        <div>
          {words.opAt(operation.engine, words.opStep[operation.step])}{" "}
          <span class="muted">{texts.value.common.aside(span(props.takenAt - operation.step_since))}</span>
        </div>
      )}
      {operation.state === "failed" && <English>{operation.sentence}</English>}
      {running && (
        <Button onClick={() => void cancelOperation(props.name)} disabled={!mayChange()}>
          {words.opCancel}
        </Button>
      )}
    </div>
  );
}

const PHASE_TONE: Record<EngineProcess["phase"], Tone> = {
  running: "ok",
  starting: "info",
  stopping: "warning",
  stopped: "warning",
  backing_off: "fault",
  failed: "fault",
  stuck: "fault",
};

function EngineItem(props: { engine: Engine; takenAt: number; locked: boolean; onRestart: () => void }) {
  const words = texts.value;
  const { engine } = props;
  const process = engine.process;
  const tone: Tone =
    process && process.phase !== "running"
      ? PHASE_TONE[process.phase]
      : engine.state === "up"
        ? "ok"
        : engine.state === "down"
          ? "fault"
          : "info";
  return (
    <article class="engine" aria-label={engine.engine}>
      <header class="engine-head">
        <h3>
          <Dot tone={tone} /> {engine.engine}
        </h3>
        <span>{process && process.phase !== "running" ? words.state.phase[process.phase] : words.state.engine[engine.state]}</span>
        <span class="muted">{engine.ranks === 1 ? words.model.oneRank : words.model.ranks(count(engine.ranks))}</span>
        <span class="engine-buttons">
          {engine.launched && (
            <>
              <a class="button plain" href={href(["engines", engine.engine, "logs"])}>
                {words.model.logs}
              </a>
              <Button onClick={props.onRestart} disabled={props.locked} label={`${words.model.restart} ${engine.engine}`}>
                {words.model.restart}
              </Button>
            </>
          )}
        </span>
      </header>
      {process && process.phase !== "running" && <Start process={process} takenAt={props.takenAt} />}
      <dl class="facts">
        <Fact name={words.model.address} value={engine.url} mono />
        <Fact name={words.model.version} value={engine.version ?? words.common.unknown} />
        <Fact
          name={words.model.scrape}
          value={engine.scrape_age_s === null ? words.common.unknown : words.common.ago(seconds(engine.scrape_age_s))}
        />
        {process ? (
          <>
            <Fact
              name={words.model.pid}
              value={`${process.pid ?? "–"}${process.taken_over ? ` ${words.common.aside(words.model.takenOver)}` : ""}`}
            />
            <Fact name={words.model.restarts} value={count(process.restarts)} />
            {process.last_crash && <Fact name={words.model.lastCrash} value={crashWords(words, process.last_crash)} />}
          </>
        ) : (
          <Fact name={words.model.pid} value={words.model.attached} />
        )}
        {engine.ranks > 1 && <Fact name={words.model.pinsTitle} value={pinWords(engine)} mono />}
      </dl>
      {process?.outdated && <Badge tone="warning">{words.model.outdated}</Badge>}
      {process && (
        <details class="command">
          <summary>{words.model.command}</summary>
          <pre tabIndex={0}>{process.command}</pre>
          <CopyButton text={process.command} label={`${words.model.copyCommand} ${engine.engine}`} />
        </details>
      )}
    </article>
  );
}

function pinWords(engine: Engine): string {
  const sign = { verified: "✓", failed: "✗", unverified: "?" };
  return engine.pins.map((pin) => `${sign[pin.state]} ${pin.endpoint}`).join("  ") || "?";
}

function Fact(props: { name: string; value: string; mono?: boolean }) {
  return (
    <div>
      <dt>{props.name}</dt>
      <dd class={props.mono ? "mono" : ""}>{props.value}</dd>
    </div>
  );
}

function Start(props: { process: EngineProcess; takenAt: number }) {
  const words = texts.value;
  const { process } = props;
  const { text, english } = processWords(words, process);
  return (
    <div class="start">
      <p>
        {english ? <English>{text}</English> : text} <span class="muted">{words.common.aside(span(props.takenAt - process.since))}</span>
      </p>
      {process.progress_ratio !== null && (
        <Meter
          wide
          ratio={process.progress_ratio}
          tone="blue"
          text={`${Math.round(process.progress_ratio * 100)} %`}
          label={words.model.startUp}
        />
      )}
      {process.last_lines.length > 0 && (
        <details open={process.phase === "failed"}>
          <summary>{words.model.lastLines}</summary>
          <pre tabIndex={0}>{process.last_lines.join("\n")}</pre>
        </details>
      )}
    </div>
  );
}
