"""Chromium opens what Trireme draws: report.html of a real run, and the image of a schedule. Light and dark, narrow and wide.

TRIREME_SCREENSHOTS: a folder for pictures of all of them."""
import os
import shutil
import subprocess
import unittest

import chromium
import report
from training import TrainingCase

# Every text that is seen, with how it stands out from what is behind it (WCAG 2: 4.5 is enough for small text, 3 for large or bold).
CONTRASTS = """(() => {
  const parse = colour => colour.match(/[\\d.]+/g).map(Number);
  const over = (top, below) => { const a = top[3] ?? 1; return [0, 1, 2].map(i => top[i] * a + below[i] * (1 - a)); };
  const luminance = rgb => { const [r, g, b] = rgb.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const canvas = matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
  const page = element => { const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), canvas); };
  // In a drawing: the last rectangle below the middle of the text that was drawn before it.
  const behind = element => {
    const box = element.getBoundingClientRect(), x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2;
    return [...(element.ownerSVGElement?.querySelectorAll("rect") ?? [])].reduce((below, rect) => {
      const its = rect.getBoundingClientRect(), fill = getComputedStyle(rect).fill;
      const counts = !rect.closest("clipPath") && fill !== "none" && rect.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING;
      return counts && its.left <= x && x <= its.right && its.top <= y && y <= its.bottom ? over(parse(fill), below) : below; }, page(element)); };
  const found = [];
  const walk = document.createTreeWalker(document.body ?? document.documentElement, NodeFilter.SHOW_TEXT);
  for (let node; node = walk.nextNode();) {
    const element = node.parentElement, text = node.textContent.trim();
    if (!text || element.closest("script, style, clipPath, title")) continue;
    if (!element.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    const style = getComputedStyle(element), range = document.createRange();
    range.selectNodeContents(node);
    const boxes = [...range.getClientRects()];
    const ground = behind(element), colour = over(parse(element instanceof SVGElement ? style.fill : style.color), ground);
    const [a, b] = [luminance(colour), luminance(ground)].sort((x, y) => y - x);
    found.push({text: text.slice(0, 60), ratio: (a + .05) / (b + .05), size: parseFloat(style.fontSize),
                in: element.tagName + "." + element.getAttribute("class"),
                drawn: boxes.some(box => box.width > 0 && box.height > 0)});
  }
  return found;
})()"""

# What sticks out of the window or of its panel, unless that scrolls.
OVERFLOW = """(() => {
  const root = document.documentElement, found = [];
  if (root.scrollWidth > root.clientWidth) found.push(`the page is ${root.scrollWidth} wide in a window of ${root.clientWidth}`);
  for (const element of document.querySelectorAll(".panel *, .card *, header *")) {
    const panel = element.closest(".panel, .card, header"), box = element.getBoundingClientRect(), outer = panel.getBoundingClientRect();
    if (element.closest("script, clipPath, svg *, input") || box.width === 0) continue;
    let scrolls = false;
    for (let at = element.parentElement; at && at !== panel; at = at.parentElement)
      scrolls ||= /auto|scroll|hidden/.test(getComputedStyle(at).overflowX);
    if (!scrolls && (box.left < outer.left - 1 || box.right > outer.right + 1))
      found.push(`${element.tagName}.${element.className} sticks out of ${panel.className}`);
  }
  return found;
})()"""

# Texts of a drawing that lie on each other or leave it; how large they are on the screen.
DRAWN_TEXTS = """[...document.querySelectorAll("svg")].filter(svg => svg.checkVisibility()).map(svg => {
  const outer = svg.getBoundingClientRect(), scale = outer.width / (svg.viewBox.baseVal.width || svg.width.baseVal.value);
  const texts = [...svg.querySelectorAll("text")].map(text => ({box: text.getBoundingClientRect(), text: text.textContent,
                                                               size: parseFloat(getComputedStyle(text).fontSize) * scale}));
  const clashes = [];
  texts.forEach(({box: a, text}, i) => {
    const inside = a.left >= outer.left - 1 && a.right <= outer.right + 1 && a.top >= outer.top - 1 && a.bottom <= outer.bottom + 1;
    if (!inside) clashes.push(`${text} leaves the drawing`);
    for (const {box: b, text: other} of texts.slice(i + 1))
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2) clashes.push(`${text} lies on ${other}`);
  });
  return {title: svg.getAttribute("aria-label") ?? "", clashes, smallest: Math.min(...texts.map(t => t.size), 99)};
})"""


@unittest.skipUnless(chromium.PROGRAM, "no Chromium is installed (Debian: chromium)")
class ChromiumTest(TrainingCase):
    def setUp(self):
        super().setUp()
        self.browser = chromium.Chromium()
        self.addCleanup(self.browser.close)

    def look(self, page, check):
        for scheme in ("light", "dark"):
            for width in (390, 1600):
                with self.subTest(page=os.path.basename(page), scheme=scheme, width=width):
                    self.browser.open(page, width, scheme)
                    if folder := os.environ.get("TRIREME_SCREENSHOTS"):
                        self.browser.screenshot(os.path.join(folder, f"{os.path.basename(page)}-{self._testMethodName}-{scheme}-{width}.png"))
                    check(scheme, width)
                    self.assertEqual(self.browser.complaints(), [])

    def readable(self):
        texts = self.browser.evaluate(CONTRASTS)
        self.assertGreater(len(texts), 10)
        self.assertEqual([text for text in texts if text["ratio"] < (3 if text["size"] >= 18 else 4.5)], [], "these texts do not stand out")
        self.assertEqual([text for text in texts if not text["drawn"]], [])
        return texts

    def drawings(self):
        drawn = self.browser.evaluate(DRAWN_TEXTS)
        self.assertGreater(len(drawn), 0)
        self.assertEqual([(one["title"], one["clashes"]) for one in drawn if one["clashes"]], [])
        return drawn

    def report_is_well(self, page, says):
        grounds = set()

        def check(scheme, width):
            self.assertEqual(self.browser.evaluate(OVERFLOW), [])
            texts = " ".join(text["text"] for text in self.readable())
            for word in says:
                self.assertIn(word, texts)
            self.assertGreaterEqual(min(one["smallest"] for one in self.drawings()), 9, "texts of a drawing are too small to read")
            grounds.add((scheme, self.browser.evaluate("getComputedStyle(document.body).backgroundColor")))
            self.the_pointer_shows_values(width)

        self.look(page, check)
        self.assertEqual(len(grounds), 2, f"light and dark are alike: {grounds}")

    def the_pointer_shows_values(self, width):
        """Over the first drawing, near its right end: the box of values stays in the window."""
        box = self.browser.evaluate("""(() => { const svg = [...document.querySelectorAll("svg")].find(s => s.checkVisibility());
          svg.scrollIntoView({block: "center"}); const box = svg.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()""")
        self.browser.move_pointer(min(box[0] + box[2], width) - 60, box[1] + box[3] / 2)
        tip = self.browser.evaluate("""new Promise(done => requestAnimationFrame(() => { const tip = document.querySelector(".tip:not([hidden])");
          if (!tip) return done(null); const box = tip.getBoundingClientRect(); done({text: tip.textContent, left: box.left, right: box.right}); }))""")
        self.assertIsNotNone(tip, "the pointer shows nothing")
        self.assertRegex(tip["text"], r"step \d+training")
        self.assertGreaterEqual(tip["left"], 0)
        self.assertLessEqual(tip["right"], width)

    def test_report_of_a_run(self):
        status, said = self.train("-n", "2", "--set", "training.eval_every=10", "--set", f"data.validation={self.path('tokens.bin')}")
        self.assertEqual(status, 0, said)
        self.report_is_well(self.path("out", "report.html"), ["finished", "Loss", "Gradient norm", "Configuration", "Environment", "step"])

    def test_report_of_a_long_run_and_its_tabs(self):
        status, said = self.train("--set", "training.steps=300", "--set", "training.checkpoint_every=0")
        self.assertEqual(status, 0, said)
        page = self.path("out", "report.html")
        self.report_is_well(page, ["smoothed"])
        for width, kind in ((1600, "wide"), (390, "narrow")):
            self.browser.open(page, width, "light")
            seen = f"['svg.linear.{kind}', 'svg.log.{kind}'].map(s => document.querySelector(s).checkVisibility())"
            self.assertEqual(self.browser.evaluate(seen), [True, False])
            self.browser.evaluate("document.querySelector('.to-log').click()")
            self.assertEqual(self.browser.evaluate(seen), [False, True])
            self.drawings()
            self.the_pointer_shows_values(width)

    def test_report_of_a_run_that_failed(self):
        for out in ("out", "again", "once-more"):  # on a busy machine, reports that take long are written less often
            status, said = self.train("--set", "engine.optimizer.params.lr=1e30", out=out)
            page = self.path(out, "report.html")
            self.assertTrue(os.path.exists(page), said)
            self.assertNotEqual(status, 0)
            if "failed, step 20" in self.text(out, "report.html"):
                break
        self.report_is_well(page, ["Loss", "failed, step 20", "not finite from step 2"])

    def test_images_of_schedules(self):
        for kind in ("gpipe", "1f1b", "interleaved", "zero-bubble"):
            image = self.path(kind + ".svg")
            chunks = ["--chunks", "2"] if kind == "interleaved" else []
            subprocess.run([self.trireme, "schedule", "--kind", kind, "--stages", "4", "--micro-batches", "8", *chunks, "--svg", image], check=True,
                           stdout=subprocess.DEVNULL)
            self.look(image, lambda scheme, width: (self.readable(), self.drawings()))
        # In a page, as README shows one.
        shutil.copy(self.path("1f1b.svg"), self.path("image.svg"))
        self.write("page.html", '<!doctype html><title>Schedule</title><img src="image.svg" alt="1f1b" style="max-width: 100%">')
        self.browser.open(self.path("page.html"), 1600, "dark")
        self.assertGreater(self.browser.evaluate("document.images[0].naturalWidth"), 300)


if __name__ == "__main__":
    report.main()
