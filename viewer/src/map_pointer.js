// SPDX-License-Identifier: Apache-2.0
// Pointer and wheel events on the maps: crosshair, tooltip, dragging, zooming and pinching.

function panelAt(view, event) {
  for (const { panels } of view.rows) {
    for (const panel of panels) if (panel.overlay === event.target) return panel;
  }
  return null;
}

// Returns a position next to the pointer, on the side that has space.
function beside(at, size, room) {
  return Math.round(Math.max(4, at + 18 + size > room ? at - 14 - size : at + 18));
}

function showTooltip(view, event, cursor) {
  const { tooltip } = view;
  tooltip.hidden = !cursor;
  if (!cursor) return;
  tooltip.replaceChildren(...view.describe(cursor));
  const { width, height } = tooltip.getBoundingClientRect();
  const x = beside(event.clientX, width, window.innerWidth);
  const y = beside(event.clientY, height, window.innerHeight);
  tooltip.style.transform = `translate(${x}px, ${y}px)`;
}

function bindDrag(view, stage) {
  let drag = null;
  const drop = () => {
    drag = null;
  };
  stage.addEventListener("pointerdown", (event) => {
    const panel = event.button === 0 && panelAt(view, event);
    if (!panel || !event.isPrimary) return;
    drag = { x: event.clientX, y: event.clientY, view: view.view() };
    panel.overlay.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => {
    const panel = panelAt(view, event);
    if (!panel || view.pinching) return;
    if (!drag) {
      const cursor = panel.entryAt(event.clientX, event.clientY, view.view());
      if (cursor) view.app.set(cursor);
      showTooltip(view, event, cursor);
      return;
    }
    const { cell, left, top } = drag.view;
    view.setView({
      cell,
      left: left - (event.clientX - drag.x) / cell,
      top: top - (event.clientY - drag.y) / cell,
    });
    view.tooltip.hidden = true;
  });
  stage.addEventListener("pointerup", (event) => {
    // Touch screens have no hover, so a tap moves the crosshair.
    const tapped =
      event.pointerType === "touch" &&
      drag &&
      !view.pinching &&
      Math.hypot(event.clientX - drag.x, event.clientY - drag.y) < 6;
    drop();
    const cursor =
      tapped && panelAt(view, event)?.entryAt(event.clientX, event.clientY, view.view());
    if (cursor) view.app.set(cursor);
  });
  stage.addEventListener("pointercancel", drop);
  stage.addEventListener("pointerleave", () => {
    view.tooltip.hidden = true;
  });
}

// Two fingers zoom: the entry between them stays between them.
function bindPinch(view, stage) {
  const fingers = new Map();
  let start = null;
  const middle = () => {
    const [a, b] = [...fingers.values()];
    return {
      x: (a.x + b.x) / 2,
      y: (a.y + b.y) / 2,
      apart: Math.max(1, Math.hypot(a.x - b.x, a.y - b.y)),
    };
  };
  const at = ({ x, y }, { left, top, cell }) => ({
    row: top + (y - start.y) / cell,
    column: left + (x - start.x) / cell,
  });
  const begin = (panel) => {
    const bounds = panel.overlay.getBoundingClientRect();
    const from = middle();
    start = { x: bounds.left + panel.rect.x, y: bounds.top + panel.rect.y, apart: from.apart };
    start.cell = view.view().cell;
    start.entry = at(from, view.view());
    view.pinching = true;
  };
  const lift = (event) => {
    fingers.delete(event.pointerId);
    start = null;
    if (fingers.size === 0) view.pinching = false;
  };
  stage.addEventListener("pointerdown", (event) => {
    const panel = event.pointerType === "touch" && panelAt(view, event);
    if (!panel) return;
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (fingers.size === 2) begin(panel);
  });
  stage.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (!start || fingers.size !== 2) return;
    const now = middle();
    const cell = view.cellWithin((start.cell * now.apart) / start.apart);
    view.setView({
      cell,
      left: start.entry.column - (now.x - start.x) / cell,
      top: start.entry.row - (now.y - start.y) / cell,
    });
  });
  stage.addEventListener("pointerup", lift);
  stage.addEventListener("pointercancel", lift);
}

function bindZoom(view, stage) {
  const onWheel = (event) => {
    const panel = panelAt(view, event);
    if (!panel?.entryAt(event.clientX, event.clientY, view.view())) return;
    event.preventDefault();
    const { left, top, cell } = view.view();
    const bounds = panel.overlay.getBoundingClientRect();
    view.zoom(
      Math.exp(-event.deltaY * (event.deltaMode === 1 ? 0.05 : 0.002)),
      top + (event.clientY - bounds.top - panel.rect.y) / cell,
      left + (event.clientX - bounds.left - panel.rect.x) / cell,
    );
  };
  stage.addEventListener("wheel", onWheel, { passive: false });
  stage.addEventListener("dblclick", (event) => {
    const at = panelAt(view, event)?.entryAt(event.clientX, event.clientY, view.view());
    if (at) view.zoom(2, at.row + 0.5, at.column + 0.5);
  });
}

// view: a MapsView.
export function bindPointer(view) {
  bindDrag(view, view.stage);
  bindPinch(view, view.stage);
  bindZoom(view, view.stage);
}
