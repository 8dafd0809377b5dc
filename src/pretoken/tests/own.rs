//! A regex of the user's own, against fancy-regex: chosen ones, random ones, long runs.

use super::{KINDS, Random, Split, check, every_mix, split};
use crate::pretoken::own::Own;

/// Regexes of all the shapes that `own` distinguishes.
const OWN: [(&str, bool); 31] = [
    // SuperBPE's two stages, and digits from the right.
    (r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]{2,}[\r\n/]*| +(?!\S)", true),
    (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", true),
    (r"(?=(\p{N}{3})+(?!\p{N}))| ?\p{L}+|\s+(?!\S)", true),
    (r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+| {2,}(?=\S)|\s+(?!\S)", true),
    (r"\p{N}{1,3}", true),
    (r"\p{N}", true),
    (r"\s+(?!\S)|\s+|\S+", true),
    (r"\s+(?!\S)|\s|x\K", false),
    (r"a+(?=\s)|\s+(?=a)|1+(?!')|'", true),
    (r"\s++(?!\S)|\s{2,3}(?=a)|a", true),
    (r"\s++$|\s+(?!\S)|\s", true),
    (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s", true),
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
        true,
    ),
    (r"(?>a+)a|(?>a|as)s|\s", true),
    (r"(?>\s+)\n|\s+a", true),
    (r"a*|\s+(?!\S)", true),
    (r"(?=s)|s+|(?<=a)\s", true),
    (r"(?<!a)1+|(?<=\s)a|\s+$", true),
    (r"(?i)S+(?!a)|\bL|^a|\n$", true),
    (r"(?:a(?!s)|\s(?=1))+|!", true),
    (r"(?:(?=a)a|1){2,}s|'", true),
    (r"((a|1)(?=\s))|\s", true),
    (r"(a)\1|\s+(?!\S)", false),
    (r"(?!a)", true),
    (r"(?s).(?=a)|x", true),
    (r"\s+(?!\S)", true),
    // Alternatives that begin alike.
    (r"\S+s1+|\S+\B[ab]*+", true),
    // One class repeated.
    (r"[^ \t\n!-/:-@]+", true),
    (r"\w+", true),
    (r"[as]+?", true),
    (r"(?i)[as]+", true),
];

#[test]
fn a_regex_of_ones_own_is_cut_as_fancy_regex_cuts() {
    let kinds: Vec<char> = KINDS.chars().collect();
    let mix = every_mix(&" \n1as!'".chars().collect::<Vec<_>>(), 5);
    let mut random = Random(7);
    for (pattern, quick) in OWN {
        assert_eq!(Own::new(pattern).expect(pattern).is_quick(), quick, "{pattern}");
        let split = split(pattern);
        check(&split, &mix);
        check(&split, "");
        for _ in 0..150 {
            check(&split, &random.text(&kinds, 60));
        }
    }
}

impl Random {
    /// A regex with everything that `own` distinguishes, and a good deal that it does not.
    fn regex(&mut self, depth: usize) -> String {
        let alternatives = 1 + self.below(if depth == 0 { 4 } else { 2 });
        let mut written = vec![];
        for _ in 0..alternatives {
            let mut alternative = String::new();
            for _ in 0..1 + self.below(3) {
                match self.below(if depth < 2 { 9 } else { 4 }) {
                    0..=3 => {
                        let atoms = ["a", "b", " ", r"\s", r"\S", "[ab]", "[^a]", r"\p{N}", "(?i:A)", r"\n", "."];
                        alternative += self.pick(&atoms);
                        alternative += self.pick(&["", "", "+", "*", "?", "{1,2}", "{2,}", "+?", "++", "?+", "*+"]);
                    }
                    4 => alternative += self.pick(&["$", "^", r"\b", r"\B", "(?m:$)", "(?m:^)"]),
                    5 | 6 => {
                        let look = self.pick(&["(?=", "(?!", "(?<=", "(?<!"]);
                        let inside = if look.contains('<') { "[ab]".into() } else { self.regex(depth + 1) };
                        alternative += &format!("{look}{inside})");
                    }
                    _ => {
                        let group = self.pick(&["(?:", "(", "(?>"]);
                        let repeated = self.pick(&["", "", "+", "{1,2}", "?"]);
                        alternative += &format!("{group}{}){repeated}", self.regex(depth + 1));
                    }
                }
            }
            written.push(alternative);
        }
        written.join("|")
    }
}

/// Compares on `texts` texts for each of `regexes` regexes, and says how many regexes compiled.
fn random_regexes(seed: u64, regexes: usize, texts: usize) -> usize {
    let mut random = Random(seed);
    let mut compiled = 0;
    for _ in 0..regexes {
        let pattern = random.regex(0);
        let Ok(split) = Split::new(&format!("regex:{pattern}")) else { continue };
        compiled += 1;
        for _ in 0..texts {
            let text: String =
                (0..random.below(14)).map(|_| random.pick(&['a', 'b', ' ', '\n', '1', 'A', '\u{e9}'])).collect();
            let mut want = vec![];
            // What the machine gives up on is an error in either, or quick in one.
            if split.reference_for_each(&text, |pretoken| want.push(pretoken.len())).is_ok() {
                let mut got = vec![];
                split.for_each(&text, |pretoken| got.push(pretoken.len())).expect(&pattern);
                assert_eq!(got, want, "`{pattern}` on {text:?}");
            }
        }
    }
    compiled
}

#[test]
fn a_random_regex_is_cut_as_fancy_regex_cuts() {
    assert!(random_regexes(3, 600, 20) > 400);
}

/// Run by hand, as `soak`. A difference may be a mistake of fancy-regex 0.20: for `(?=q)|a+a?a+` it finds `a`.
#[test]
#[ignore = "minutes; the number of regexes is in the environment"]
fn soak_regexes() {
    let setting = |name: &str, default| std::env::var(name).map_or(default, |n| n.parse().expect("a number"));
    random_regexes(setting("SOAK_SEED", 2), setting("SOAK", 10_000) as usize, 40);
}

#[test]
fn a_long_run_is_no_trouble_to_a_regex_whose_look_ahead_is_one_character() {
    for (pattern, pretokens) in [
        (r"\s+(?!\S)|\s+|\S+", 3),
        (r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]{2,}[\r\n/]*| +(?!\S)", 2),
        (r" +(?=y)", 1),
        (r" +(?=y)|\S+", 2),
    ] {
        let text = " ".repeat(1_000_000) + "x";
        let mut seen = 0;
        split(pattern).for_each(&text, |_| seen += 1).expect("no backtracking");
        assert_eq!(seen, pretokens, "{pattern}");
    }
}
