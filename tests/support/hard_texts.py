"""Texts that tokenizers split differently if anything about them differs."""

# ruff: noqa: RUF001 - that signs look alike is the point

from __future__ import annotations

HARD_TEXTS = (
    "", " ", "  ", "\n", "\r\n\r\n", "\t\t x", " a", "a ", "  a  b   c    d", "\n\n\n  \n x\n",
    "Hello, world! It's we've I'LL they'd Don'T 'tis 's",
    "1 22 333 4444 55555 3.14159 1e-9 0xFF ½ ² Ⅷ ٣٤٥ ١ 12:30 1,000,000",
    "naïve café Ünïcödé ÅNGSTRÖM straße İstanbul ǅ",
    "cafe\u0301 n\u0303 a\u0323\u0307 \u0301 q\u0300\u0301\u0302 \u212b \ufb01",
    "日本語のテキスト、漢字とカナ。ﾊﾝｶｸ 中文测试，你好！ 한국어 텍스트 ㄱㄴ ไทย हिन्दी مرحبا שלום",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 👍🏽 ❤️ 🇩🇪 \U0001f9d1\u200d\U0001f4bb \u200d \u200b\u2060\ufeff",
    "def f(x):\n    return [i**2 for i in range(x) if i % 2 == 0]  # odd\n\n\tif (a&&b||!c){d->e;}",
    "<html><body class='x'>&nbsp;</body></html> {\"k\": [1, 2.5e3, null]} $x_1^2$ \\frac{a}{b}",
    "https://example.org/a?b=c&d=%20#e user@mail.example C:\\dir\\file.txt ~/x ./y",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa !!!!!!!!!!!! ............ -------- ======== ########",
    "\u00a0nbsp\u00a0 \u2003em\u2003 \u2028line\u2029para \x0b\x0c\x1c\x85 \x00\x01\x7f",
    "ALLCAPS camelCaseWord snake_case_word kebab-case-word XMLHttpRequest iPhone15Pro",
    "\u2581 ▁▁ a▁b <0x41> <0x0A> Ġ Ċ ĠĠa", "\ud7ff\ue000\ufffd\U0010ffff",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <s> </s> <unk> [INST] x [/INST]<pad>",
    "<|im_start|> <|im_end|>a <|im_end|><|im_end|> <|im_end |>",
    "The quick brown fox jumps over the lazy dog. " * 3,
)  # fmt: skip
