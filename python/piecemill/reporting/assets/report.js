// Encodes typed text by byte-level BPE, as `Tokenizer.encode` does, and shows the tokens.
"use strict";
(() => {
  const source = document.getElementById("bpe");
  if (!source) return;
  const bpe = JSON.parse(source.textContent);
  const unpacked = (text) => {
    const raw = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const ids = new Uint32Array(raw.length / bpe.width);
    for (let i = 0; i < ids.length; i++) {
      for (let b = bpe.width - 1; b >= 0; b--) ids[i] = ids[i] * 256 + raw[i * bpe.width + b];
    }
    return ids;
  };
  const pairs = unpacked(bpe.merges);
  const made = new Uint32Array(pairs.length / 2); // the token of each rank
  bpe.runs.forEach(([start, id], at) => {
    const stop = at + 1 < bpe.runs.length ? bpe.runs[at + 1][0] : made.length;
    for (let rank = start; rank < stop; rank++) made[rank] = id + rank - start;
  });
  const key = (left, right) => left * 16777216 + right;
  const ranks = new Map(); // pair -> rank
  const bytes = new Map(bpe.bytes.map((id, byte) => [id, [byte]]));
  const whole = new Map(bpe.whole); // bytes of tokens that only a whole piece can be -> id
  for (const [text, id] of bpe.whole) bytes.set(id, text.match(/../g).map((byte) => parseInt(byte, 16)));
  for (let rank = 0; rank < made.length; rank++) {
    const left = pairs[2 * rank], right = pairs[2 * rank + 1];
    if (!ranks.has(key(left, right))) ranks.set(key(left, right), rank);
    bytes.set(made[rank], bytes.get(left).concat(bytes.get(right)));
  }
  const patterns = bpe.patterns.map((pattern) => new RegExp(pattern, "gu"));

  // What a pattern matches are pieces, and so is the text between two matches.
  const cut = (text) => {
    let pieces = [text];
    for (const pattern of patterns) {
      pieces = pieces.flatMap((piece) => {
        const out = [];
        let at = 0;
        for (const match of piece.matchAll(pattern)) {
          if (match.index > at) out.push(piece.slice(at, match.index));
          if (match[0]) out.push(match[0]);
          at = match.index + match[0].length;
        }
        if (at < piece.length) out.push(piece.slice(at));
        return out;
      });
    }
    return pieces;
  };

  const utf8 = new TextEncoder();
  const hex = (raw) => Array.from(raw, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
  const encode = (text) => cut(text).flatMap((piece) => {
    const raw = utf8.encode(piece);
    const alone = whole.size ? whole.get(hex(raw).replaceAll(" ", "")) : undefined;
    if (alone !== undefined) return [alone];
    const ids = Array.from(raw, (byte) => bpe.bytes[byte]);
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < ids.length; i++) {
        const rank = ranks.get(key(ids[i], ids[i + 1]));
        if (rank !== undefined && rank < best) { best = rank; at = i; }
      }
      if (at < 0) return ids;
      ids.splice(at, 2, made[best]);
    }
  });

  const typed = document.getElementById("typed");
  const shown = document.getElementById("typed-tokens");
  const list = document.getElementById("typed-ids");
  const count = document.getElementById("typed-count");
  const strict = new TextDecoder("utf-8", { fatal: true });
  const spelled = (raw) => {
    try { return strict.decode(Uint8Array.from(raw)).replaceAll("\n", "⏎\n"); } catch { return hex(raw); }
  };
  const update = () => {
    const ids = encode(typed.value);
    const size = utf8.encode(typed.value).length;
    shown.replaceChildren(...ids.map((id, at) => {
      const span = document.createElement("span");
      span.className = "t" + (at % 6);
      span.tabIndex = 0;
      span.title = "id " + id + " · " + hex(bytes.get(id));
      span.textContent = spelled(bytes.get(id));
      return span;
    }));
    list.value = ids.join(" ");
    count.textContent = ids.length + " tokens, " + size + " bytes" +
      (ids.length ? ", " + (size / ids.length).toFixed(3) + " bytes per token" : "");
  };
  typed.addEventListener("input", update);
  update();
})();
