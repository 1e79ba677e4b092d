// A table of which only the rows in view exist: a thousand conversations cost as much as thirty.

import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";

export const ROW_PX = 34;
const SPARE_ROWS = 8;
const VIEW_ROWS = 40;

export interface Column<T> {
  key: string;
  head: string;
  cell: (row: T) => ComponentChildren;
  // numbers stand at the right
  right?: boolean;
  // hidden on a phone
  extra?: boolean;
  means?: string;
}

// Which rows to draw: a pure function, for the tests.
export function windowOf(scrollTop: number, viewPx: number, rows: number): { first: number; last: number } {
  const first = Math.max(0, Math.min(rows, Math.floor(scrollTop / ROW_PX)) - SPARE_ROWS);
  const last = Math.min(rows, Math.ceil((scrollTop + viewPx) / ROW_PX) + SPARE_ROWS);
  return { first, last };
}

export function VirtualTable<T>(props: {
  label: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
  id: (row: T) => string;
  total?: number | null;
  onNearEnd?: () => void;
  rowClass?: (row: T) => string;
  onHold?: (held: boolean) => void;
}) {
  const [top, setTop] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  const viewPx = box.current?.clientHeight ?? VIEW_ROWS * ROW_PX;
  const { first, last } = windowOf(top, viewPx, props.rows.length);
  const shown = props.rows.slice(first, last);
  const onScroll = (): void => {
    const element = box.current;
    if (!element) return;
    setTop(element.scrollTop);
    props.onHold?.(true);
    if (element.scrollTop + element.clientHeight > element.scrollHeight - 10 * ROW_PX) props.onNearEnd?.();
  };
  return (
    <div
      class="scroll virtual"
      role="group"
      aria-label={props.label}
      tabIndex={0}
      ref={box}
      onScroll={onScroll}
      onPointerMove={() => props.onHold?.(true)}
      onPointerLeave={() => props.onHold?.(false)}
      onKeyDown={() => props.onHold?.(true)}
    >
      <table aria-rowcount={props.total ?? props.rows.length}>
        <thead>
          <tr>
            {props.columns.map((column) => (
              <th key={column.key} scope="col" class={cellClass(column)} title={column.means}>
                {column.head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {first > 0 && <Spacer rows={first} columns={props.columns.length} />}
          {shown.map((row, index) => (
            <tr key={props.id(row)} aria-rowindex={first + index + 2} class={props.rowClass?.(row)}>
              {props.columns.map((column) => (
                <td key={column.key} class={cellClass(column)}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
          {last < props.rows.length && <Spacer rows={props.rows.length - last} columns={props.columns.length} />}
        </tbody>
      </table>
    </div>
  );
}

function Spacer(props: { rows: number; columns: number }) {
  return (
    <tr aria-hidden="true" class="spacer">
      <td colSpan={props.columns} style={{ height: `${props.rows * ROW_PX}px` }} />
    </tr>
  );
}

function cellClass<T>(column: Column<T>): string {
  return `${column.right ? "right" : ""} ${column.extra ? "extra" : ""}`.trim();
}
