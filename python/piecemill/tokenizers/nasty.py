"""Texts that engines disagree on, if they disagree at all.

Every character here has been in Unicode since version 9 (2016) or longer: engines carry tables of different age, and a
letter that only one of them knows says nothing about the rest (docs/tokenizers.md, Unicode 17).
"""

_SCRIPTS = (
    "The quick brown fox's 3 dogs; it's, we'll, THEY'RE, don'T.",
    "Zażółć gęślą jaźń, Ærøskøbing, Þórr, İstanbul'da ılık, naïve façade, ǅ ŉ ﬁ ß ẞ",
    "Съешь ещё этих мягких французских булок; ґ є ї ў ђ ћ Ѩ",
    "Ελληνικά: ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία· ᾳ ῷ",
    "שָׁלוֹם עולם, מה שלומך? ״ציטוט״",
    "مرحبا بالعالم، كَيْفَ حالك؟ ١٢٣ پچژگ ﷺ",
    "हिन्दी में नमस्ते १२३, क्षत्रिय; বাংলা ভাষা ৪৫৬; தமிழ் மொழி; ಕನ್ನಡ; తెలుగు; മലയാളം; ગુજરાતી; ਪੰਜਾਬੀ; ଓଡ଼ିଆ; සිංහල",
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ ๑๒๓; ພາສາລາວ; မြန်မာဘာသာ; ភាសាខ្មែរ; བོད་ཡིག",
    "日本語のテキスト、漢字とカタカナ。ｶﾀｶﾅ １２３; 简体中文，繁體中文。㍿ ①",
    "한국어 텍스트 각각 ᄒ\u1161ᆫ",
    "ქართული ႠႡ; Հայերեն; አማርኛ; ᏣᎳᎩ ꮳ; ᠮᠣᠩᠭᠣᠯ; ᚠᚢᚦ; ᐃᓄᒃᑎᑐᑦ; ⴰⵎⴰⵣⵉⵖ; 𐌰𐌱𐌲; 𒀀𒁀; 𓀀𓂀; 𝔘𝔫𝔦𝔠𝔬𝔡𝔢; 𠀀𠮷",
)

_SHAPES = (
    "",
    " ",
    "  ",
    "\n",
    "\t",
    "a",
    "é",
    "👩‍🔬👨‍👩‍👧‍👦🏳️‍🌈🇩🇪🇫🇷👍🏽 text 👩🏾‍🚀 ☺️ ☺︎ 1️⃣ 🏴\U000e0067\U000e0062\U000e007f",
    "".join(map(chr, range(0x20))),
    "".join(map(chr, range(0x7F, 0xA1))),
    "a\0b\x1bc\x7fd",
    "\u0301\u0301 \u0301a\u0301 \u20d7\u20d7 \u0e31 \u093f \u200d\u200c",
    "e\u0301 \u00e9 \u1e9b\u0323 \u212b \uff21 \u2460 \ufb01",
    "a" + "\u0300" * 60 + "b",
    "a" * 700,
    "ab" * 400,
    " " * 700,
    "\n" * 300 + " " * 17 + "x",
    "\t" * 70 + "x" + "-" * 300 + "=" * 299 + "." * 130,
    "é" * 300 + "漢" * 200 + "👍" * 100,
    "1234567890" * 20 + " 1,000,000.00 ½ ² ٣٤٥٦ Ⅻ 0x7fff 1e-9",
    "line\r\nline\r\n\r\n  line \r \r\n\t\tend  \n ",
    "a \n  ",
    "a\r\n\r\n \r\n",
    "trailing   ",
    "   leading",
    "inner    spaces \t mixed\t\twith  tabs",
    "\u00a0\u2003\u3000\u200b\ufeff\u0085\u2028\u2029 x\u00a0y \u1680 \u180e",
    "I'm you'RE we'Ll it'S '\u017f don'\u212a '' 'tis'd 'S'T",
    "snake_case camelCase HTTPServer XMLHttpRequest2 __init__ ALLCAPS a.b.c a/b//c \\n $x @y #z",
    "def f(x):\n    return x  # <!-- http://a.b/c?d=e&f=g#h -->\n\n\n\tif a//b != c/d: pass/\n/",
    "\U0010ffff\ue000\ufffd\ufffe\uffff\U000e0001",
    # What looks like a special token, and what libraries use inside for a space or a byte
    "<s></s> <s> x</s>y <unk><pad> <|endoftext|>x<|endoftext|> <|ENDOFTEXT|> <|endoftext| > <|im_start|>",
    "[CLS] a [SEP] [MASK] [UNK] [PAD] [INST] b [/INST] <mask> <bos><eos> <|begin_of_text|> <|fim_prefix|>",
    "<0x41><0x0A> <0x00>",
    "\u2581\u2581 \u2581a b\u2581 Ġthe ĊĊ ##ing ing## @@ </w>",
)

NASTY = (*_SCRIPTS, *_SHAPES)
"All of them; their order is fixed, so that a report can name one by its number."
