#include <trireme/monitor/report_assets.h>

namespace trireme::monitor {

const char* const kReportStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #f4f6f8; --panel: #ffffff; --edge: #e1e6eb; --text: #17212b; --soft: #5b6875; --grid: #e9edf1;
  --a: #1f6fd6; --b: #d9630b; --c: #0c8577; --raw: #9cc0ee; --good: #0a7a4c; --bad: #c32f27; --code: #f7f9fb;
  --key: #1f5fb0; --string: #0a7a4c; --number: #a8490a; --word: #8a3fb0;
  --shadow: 0 1px 2px rgba(20, 35, 50, .06), 0 4px 16px rgba(20, 35, 50, .04);
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f151b; --panel: #182029; --edge: #27323d; --text: #e6ecf1; --soft: #97a5b2; --grid: #242e38;
    --a: #62a8ff; --b: #ff9d4d; --c: #43cfbd; --raw: #31557f; --good: #4fd39a; --bad: #ff7b72; --code: #121a21;
    --key: #82b8ff; --string: #6fd6a5; --number: #ffb070; --word: #d4a1ef;
    --shadow: none;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
}
main { max-width: 1140px; margin: 0 auto; padding: 32px 20px 48px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 14px; margin-bottom: 22px; }
h1 { font-size: 27px; line-height: 1.2; margin: 0; letter-spacing: -.01em; overflow-wrap: anywhere; }
header p { margin: 0; color: var(--soft); flex-basis: 100%; }
.badge { font-size: 13px; font-weight: 600; padding: 2px 10px; border-radius: 99px; border: 1px solid var(--edge);
  background: var(--panel); color: var(--good); }
.badge.bad { color: var(--bad); }
.cards { display: flex; flex-wrap: wrap; gap: 14px; margin-bottom: 18px; }
.cards:empty { display: none; }
.card, .panel { background: var(--panel); border: 1px solid var(--edge); border-radius: 10px; box-shadow: var(--shadow); }
.card { flex: 1 1 198px; padding: 14px 16px 13px; min-width: 0; }
.card h2 { margin: 0 0 2px; font-size: 13px; font-weight: 500; color: var(--soft); }
.card b { display: block; font-size: 25px; font-weight: 650; line-height: 1.25; letter-spacing: -.015em;
  overflow-wrap: anywhere; }
.card b small { font-size: 14px; font-weight: 500; color: var(--soft); letter-spacing: 0; }
.card span { display: block; font-size: 13px; color: var(--soft); min-height: 1.5em; overflow-wrap: anywhere; }
.card.main { border-top: 3px solid var(--b); padding-top: 12px; }
.card.train { border-top: 3px solid var(--a); padding-top: 12px; }
.panel { padding: 16px 18px; margin: 0 0 18px; min-width: 0; }
.panel > h2, .caption h2 { font-size: 15px; font-weight: 650; margin: 0; }
.panel > h2 { margin-bottom: 10px; }
.caption { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 16px; margin-bottom: 6px; font-size: 13px;
  color: var(--soft); }
.caption h2 { color: var(--text); }
.legend i { display: inline-block; width: 16px; height: 3px; border-radius: 2px; vertical-align: middle;
  margin-right: 6px; background: var(--a); }
.legend i.b { background: var(--b); } .legend i.c { background: var(--c); } .legend i.raw { background: var(--raw); }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(430px, 100%), 1fr)); gap: 0 18px; }
.plots { position: relative; }
svg { display: block; width: 100%; height: auto; touch-action: pan-y; }
svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--edge); }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--soft);
  font-variant-numeric: tabular-nums; }
svg text.note { fill: var(--soft); } svg text.bad { fill: var(--bad); }
.line { fill: none; stroke: var(--a); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line.b { stroke: var(--b); } .line.c { stroke: var(--c); } .line.raw { stroke: var(--raw); stroke-width: 1; }
.dot { fill: var(--a); stroke: var(--panel); stroke-width: 1.5; } .dot.b { fill: var(--b); } .dot.c { fill: var(--c);
  } .dot.raw { fill: var(--raw); }
.reference { stroke: var(--soft); stroke-dasharray: 6 5; } .mark { stroke: var(--bad); stroke-dasharray: 2 4; }
.cursor { stroke: var(--soft); stroke-opacity: .55; }
.tip { position: absolute; pointer-events: none; top: 14px; padding: 7px 11px; border-radius: 8px; font-size: 13px; line-height: 1.55;
  background: var(--panel); border: 1px solid var(--edge); box-shadow: 0 4px 18px rgba(0, 0, 0, .16);
  white-space: nowrap; font-variant-numeric: tabular-nums; }
.tip[hidden] { display: none; }
.tip i { display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 7px; background: var(--a); }
.tip i.b { background: var(--b); } .tip i.c { background: var(--c); } .tip i.raw { background: var(--raw); }
.tip b { font-weight: 600; margin-left: 10px; float: right; }
.choice { position: absolute; opacity: 0; pointer-events: none; }
.tabs { margin-left: auto; display: flex; border: 1px solid var(--edge); border-radius: 7px; overflow: hidden; }
.tabs label { padding: 2px 11px; cursor: pointer; }
.pick-linear:checked ~ .caption .to-linear, .pick-log:checked ~ .caption .to-log { background: var(--grid);
  color: var(--text); font-weight: 600; }
.choice:focus-visible ~ .caption .tabs { outline: 2px solid var(--a); }
.pick-linear:checked ~ .plots .log, .pick-log:checked ~ .plots .linear { display: none; }
pre { margin: 0; padding: 12px 14px; border-radius: 8px; background: var(--code); border: 1px solid var(--edge);
  font: 13px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow: auto;
  max-height: 480px; tab-size: 4; }
pre.sample { white-space: pre-wrap; overflow-wrap: anywhere; font-family: Georgia, Charter, "DejaVu Serif", serif;
  font-size: 15px; line-height: 1.6; }
pre.sample mark { background: none; color: var(--a); font-weight: 700; }
pre + pre { margin-top: 12px; }
.k { color: var(--key); } .s { color: var(--string); } .n { color: var(--number); } .w { color: var(--word); }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 6px 0; border-top: 1px solid var(--grid); vertical-align: top; overflow-wrap: anywhere; }
tr:first-child th, tr:first-child td { border-top: 0; }
th { font-weight: 500; color: var(--soft); padding-right: 18px; width: 38%; }
.empty { color: var(--soft); margin: 0; }
footer { color: var(--soft); font-size: 13px; text-align: center; }
svg.narrow { display: none; }
@media (max-width: 800px) { svg.wide { display: none; } svg.narrow { display: block; } }
/* Drawings are at 0.6 of their size here. */
@media (max-width: 480px) {
  main { padding: 20px 12px 32px; } .panel { padding: 14px 12px; } .cards { gap: 10px; } .card { flex-basis: 150px; padding: 11px 12px 10px; }
  svg text { font-size: 15px; }
}
@media print { body { background: none; } .panel, .card { box-shadow: none; break-inside: avoid; } .tabs { display: none; } }
)css";

const char* const kReportScript = R"js(
"use strict";
for (const plots of document.querySelectorAll(".plots")) {
  const lines = JSON.parse(plots.querySelector("script").textContent);
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  plots.append(tip);
  const number = value => value === null ? "not finite"
      : value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(2)
      : value.toLocaleString("en", {maximumSignificantDigits: Math.abs(value) >= 1e4 ? 6 : 4});
  const nearest = (points, x) => {
    let low = 0, high = points.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < x) low = middle + 1; else high = middle;
    }
    return low > 0 && x - points[low - 1][0] < points[low][0] - x ? points[low - 1] : points[low];
  };
  for (const svg of plots.querySelectorAll("svg")) {
    const [xLow, xHigh, yLow, yHigh, left, right, top, bottom, log] = JSON.parse(svg.dataset.scale);
    const marks = document.createElementNS(svg.namespaceURI, "g");
    svg.append(marks);
    const add = (name, attributes) => {
      const element = document.createElementNS(svg.namespaceURI, name);
      for (const key in attributes) element.setAttribute(key, attributes[key]);
      marks.append(element);
    };
    const toX = x => {
      const part = log ? Math.log(Math.max(x, 1) / xLow) / Math.log(xHigh / xLow) : (x - xLow) / (xHigh - xLow);
      return left + part * (right - left);
    };
    const hide = () => { tip.hidden = true; marks.replaceChildren(); };
    const show = event => {
      const box = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / box.width;
      const at = (event.clientX - box.left) * scale;
      const part = Math.min(1, Math.max(0, (at - left) / (right - left)));
      const wanted = log ? xLow * Math.pow(xHigh / xLow, part) : xLow + part * (xHigh - xLow);
      let step = null;
      for (const line of lines) {
        if (!line.points.length) continue;
        const x = nearest(line.points, wanted)[0];
        if (step === null || Math.abs(x - wanted) < Math.abs(step - wanted)) step = x;
      }
      marks.replaceChildren();
      if (step === null) return hide();
      const head = document.createElement("div");
      head.textContent = "step " + step.toLocaleString("en");
      tip.replaceChildren(head);
      add("line", {class: "cursor", x1: toX(step), x2: toX(step), y1: top, y2: bottom});
      for (const line of lines) {
        if (!line.points.length) continue;
        const [x, y] = nearest(line.points, step);
        const row = document.createElement("div");
        const colour = document.createElement("i");
        const value = document.createElement("b");
        colour.className = line.style;
        value.textContent = number(y);
        const elsewhere = Math.abs(x - step) > (xHigh - xLow) / 200;
        row.append(colour, line.label + (elsewhere ? " (step " + x.toLocaleString("en") + ")" : ""), value);
        tip.append(row);
        if (y !== null && y >= yLow && y <= yHigh) {
          const cy = bottom - (y - yLow) / (yHigh - yLow) * (bottom - top);
          add("circle", {class: "dot " + line.style, r: 4.5, cx: toX(x), cy});
        }
      }
      tip.hidden = false;
      const x = toX(step) / scale;
      const flip = x + 20 + tip.offsetWidth > box.width;
      tip.style.left = Math.max(0, flip ? x - 14 - tip.offsetWidth : x + 14) + "px";
    };
    svg.addEventListener("pointermove", show);
    svg.addEventListener("pointerdown", show);
    svg.addEventListener("pointerleave", hide);
  }
}
)js";

} // namespace trireme::monitor
