// One chart on the page: title, words, legend that doubles as the read-out under the pointer, the picture, exports, and
// the same figures as a table for whoever cannot see the picture.

import uPlot from "uplot";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { clock, dateTime } from "../format";
import { texts } from "../i18n";
import { hasData, latestKnown } from "../logic/series";
import { dark, lang } from "../prefs";
import { Button, Card, Empty, Scroll } from "../ui/basics";
import { useWidth } from "../ui/hooks";
import { legendOrder, widerBars, type Line, type PlotSpec } from "../logic/plot-spec";
import { plotData, plotOptions, toPng } from "./plot";

const TABLE_ROWS = 200;

export function Chart(props: {
  title: string;
  hint?: string;
  note?: string;
  spec: PlotSpec | null;
  height?: number;
  csv?: string;
  onRange?: (from: number, to: number) => void;
  aside?: ComponentChildren;
  fileName: string;
}) {
  const words = texts.value.stats;
  const [index, setIndex] = useState<number | null>(null);
  const plot = useRef<uPlot | null>(null);
  const [measured, width] = useWidth();
  const spec = props.spec;
  // The picture may join buckets into wider bars; the table and the CSV keep each bucket.
  const drawn = useMemo(() => spec && widerBars(spec, width), [spec, width]);
  const savePng = async (): Promise<void> => {
    if (!plot.current || !drawn) return;
    const blob = await toPng(plot.current, props.title, props.note ?? "", legendOrder(drawn.lines));
    if (blob) save(blob, `${props.fileName}.png`);
  };
  return (
    <Card
      class="chart-card"
      title={props.title}
      aside={
        <>
          {props.aside}
          {props.csv && (
            <a class="button plain" href={props.csv} download={`${props.fileName}.csv`} aria-label={words.exportCsv(props.title)}>
              {words.csv}
            </a>
          )}
          {spec && (
            <Button onClick={() => void savePng()} label={words.exportPng(props.title)}>
              {words.png}
            </Button>
          )}
        </>
      }
    >
      {props.note ? <p class="chart-note">{props.note}</p> : null}
      {drawn && <Legend spec={drawn} index={index} />}
      {spec && !hasData(spec.lines.map((line) => line.values)) && <Empty>{words.noData}</Empty>}
      <div ref={measured} />
      <Canvas
        width={width}
        spec={drawn}
        height={props.height ?? 200}
        title={props.title}
        note={props.note ?? ""}
        onIndex={setIndex}
        plotRef={plot}
        {...(props.onRange ? { onRange: props.onRange } : {})}
      />
      {props.hint && <p class="hint">{props.hint}</p>}
      {spec && <FigureTable spec={spec} title={props.title} />}
    </Card>
  );
}

function Canvas(props: {
  width: number;
  spec: PlotSpec | null;
  height: number;
  title: string;
  note: string;
  onIndex: (index: number | null) => void;
  onRange?: (from: number, to: number) => void;
  plotRef: { current: uPlot | null };
}) {
  const { width } = props;
  const box = useRef<HTMLDivElement>(null);
  const latest = useRef(props);
  latest.current = props;
  const isDark = dark.value;
  const language = lang.value;
  const shape = props.spec
    ? props.spec.lines.map((line) => line.label + line.kind).join("|") + String(props.spec.log ?? false) + props.spec.stepS
    : "";
  // A new picture when its shape, its colours or its words change; otherwise only new data.
  useEffect(() => {
    const spec = latest.current.spec;
    if (!spec || !box.current || width < 50) return;
    const plot = new uPlot(live(latest), plotData(spec), box.current);
    props.plotRef.current = plot;
    return () => {
      props.plotRef.current = null;
      plot.destroy();
    };
  }, [width > 50, width > 620, shape, isDark, language]);
  useEffect(() => {
    props.plotRef.current?.setSize({ width, height: props.height });
  }, [width, props.height]);
  useEffect(() => {
    if (props.spec) props.plotRef.current?.setData(plotData(props.spec));
  }, [props.spec]);
  return (
    <div
      class="canvas"
      ref={box}
      role="img"
      aria-label={props.note ? `${props.title}: ${props.note}` : props.title}
      style={{ height: `${props.height}px` }}
    />
  );
}

// Options that always look at the latest description, so that setData alone moves the scales.
function live(latest: {
  current: {
    spec: PlotSpec | null;
    width: number;
    height: number;
    onIndex: (index: number | null) => void;
    onRange?: (from: number, to: number) => void;
  };
}): uPlot.Options {
  const first = latest.current.spec!;
  const spec: PlotSpec = new Proxy(first, { get: (_target, name) => Reflect.get(latest.current.spec ?? first, name) });
  return plotOptions(spec, latest.current.width, latest.current.height, {
    onIndex: (index) => latest.current.onIndex(index),
    onRange: (from, to) => latest.current.onRange?.(from, to),
  });
}

// Under the pointer the values of that moment, otherwise the latest ones.
function Legend(props: { spec: PlotSpec; index: number | null }) {
  const { spec } = props;
  const index = props.index ?? latestKnown(spec.lines.map((line) => line.values));
  const at = index === null ? null : (spec.times[index] ?? null);
  return (
    <div class="legend">
      {legendOrder(spec.lines).map((line) => (
        <span key={line.label} class="legend-item">
          <span class={`swatch ${line.color}`} aria-hidden="true" />
          {line.label}
          <b class="legend-value">{index === null ? "" : valueText(spec, line, index)}</b>
        </span>
      ))}
      <span class="legend-time">{at === null ? "" : spec.to - spec.from > 36 * 3600 ? dateTime(at) : clock(at)}</span>
    </div>
  );
}

function valueText(spec: PlotSpec, line: Line, index: number): string {
  return spec.format((line.own ?? line.values)[index] ?? null);
}

// The latest figures first; all of them are in the CSV.
function FigureTable(props: { spec: PlotSpec; title: string }) {
  const [open, setOpen] = useState(false);
  const { spec } = props;
  const rows = open
    ? spec.times
        .map((_, index) => index)
        .reverse()
        .slice(0, TABLE_ROWS)
    : [];
  return (
    <details class="figures" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{texts.value.stats.table}</summary>
      <Scroll label={props.title} class="figures-box">
        <table>
          <thead>
            <tr>
              <th scope="col">{texts.value.common.time}</th>
              {spec.lines.map((line) => (
                <th key={line.label} scope="col" class="right">
                  {line.label}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((index) => (
              <tr key={index}>
                <td>{dateTime(spec.times[index])}</td>
                {spec.lines.map((line) => (
                  <td key={line.label} class="right">
                    {valueText(spec, line, index)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </details>
  );
}

function save(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
