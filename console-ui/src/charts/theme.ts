// Colours of the style sheet for what is painted on a canvas.

export type Paint =
  | "cached"
  | "computed"
  | "completion"
  | "text"
  | "muted"
  | "line"
  | "surface"
  | "blue"
  | "purple"
  | "green"
  | "amber"
  | "red"
  | "teal"
  | "grey";

const probe = document.createElement("span");
probe.className = "probe";

// The style sheet says light-dark(a, b); only a computed colour says which one holds now.
export function paint(name: Paint): string {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
