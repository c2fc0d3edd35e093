// SPDX-License-Identifier: Apache-2.0
// Pointer and wheel events on the maps: crosshair, tooltip, dragging and zooming.

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
    if (!panel) return;
    drag = { x: event.clientX, y: event.clientY, view: view.view() };
    panel.overlay.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => {
    const panel = panelAt(view, event);
    if (!panel) return;
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
  bindZoom(view, view.stage);
}
