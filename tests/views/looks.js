// What can be wrong with the looks of a page, as sentences: texts that overlap, and texts that stick out of the page.
() => {
  const found = [];
  const visible = (one) => one.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  const inner = (svg) => { // the box of an inner drawing is that of its contents: this is what it shows of them
    const outer = svg.parentElement.getBoundingClientRect();
    const [left, top] = [outer.left + svg.x.baseVal.value, outer.top + svg.y.baseVal.value];
    return { left, top, right: left + svg.width.baseVal.value, bottom: top + svg.height.baseVal.value };
  };
  const clipped = (box, one) => {
    let { left, top, right, bottom } = box;
    for (let up = one.parentElement; up && up !== document.body; up = up.parentElement) {
      const how = getComputedStyle(up);
      if (how.overflowX === "visible" && how.overflowY === "visible") continue;
      if (up.tagName === "svg" && up.parentElement.tagName !== "svg") continue; // our charts draw beyond their frame
      const frame = up.tagName === "svg" ? inner(up) : up.getBoundingClientRect();
      [left, top, right, bottom] = [Math.max(left, frame.left), Math.max(top, frame.top), Math.min(right, frame.right), Math.min(bottom, frame.bottom)];
    }
    return { left, top, right, bottom };
  };
  const boxes = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const one = node.parentElement;
    if (!node.data.trim() || one.closest("script, style, title, desc, option, .unseen, .skip, .live-bar, nav") || !visible(one)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const line of range.getClientRects()) {
      const box = clipped(line, one);
      if (box.right - box.left < 1 || box.bottom - box.top < 1) continue;
      boxes.push({ ...box, words: node.data.trim().slice(0, 40), one });
    }
  }
  boxes.sort((a, b) => a.top - b.top);
  boxes.forEach((a, index) => {
    if (a.right > document.documentElement.clientWidth + 1) found.push(`"${a.words}" sticks out`);
    for (const b of boxes.slice(index + 1)) {
      if (b.top > a.bottom) break;
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - b.top;
      const lines = Math.min(a.bottom - a.top, b.bottom - b.top);
      if (wide > 3 && high > 0.35 * lines && a.one !== b.one) found.push(`"${a.words}" overlaps "${b.words}"`);
    }
  });
  return [...new Set(found)];
}
