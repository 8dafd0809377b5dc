//! A folder -> its files, in a stable order.
//!
//! In: a folder on disk, or a listing of one that lies elsewhere, and the rules. Out: the files that are wanted with their sizes, ordered by path, component by
//! component and byte by byte; and how many entries each rule left out. A folder that is left out counts once,
//! since nobody looks inside.
//!
//! The walk is our own, with the matchers of the `ignore` crate: its walker leaves entries out without saying
//! so. Only `.gitignore` files inside the folder count, not those above it nor the user's own: what is read
//! depends on the folder, not on where it lies. Links to files are followed, links to folders are not, so a
//! walk cannot go round in circles.

use crate::error::{Error, Result};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Most bytes of a `.gitignore`; a larger one is an error rather than a mountain of patterns.
pub const GITIGNORE_BYTES: u64 = 1024 * 1024;

/// What a walk wants.
#[derive(Debug)]
pub struct Rules {
    only: Option<(GlobSet, GlobSet)>,
    include: Option<GlobSet>,
    exclude: GlobSet,
    gitignore: bool,
    hidden: bool,
    out: Option<PathBuf>,
}

/// Names that make a folder one of ours: token shards, a pretraining run, saved tokenizers, an action vocabulary.
const OWN: [[&str; 2]; 5] = [
    ["plan.json", "files.jsonl"],
    ["plan.json", "metrics.jsonl"],
    ["tokenizer.json", "training.json"],
    ["ranks.tiktoken", "encoding.json"],
    ["actionpiece.json", "actionpiece.json"],
];

/// One of these makes a folder a saved tokenizer if it holds nothing else than these and `BESIDE_VOCABULARIES`.
const VOCABULARIES: [&str; 4] = ["tokenizer.json", "tokenizer.model", "ranks.tiktoken", "integers.json"];
/// What a saved tokenizer has beside its vocabulary; also any `*.model` and `*.jinja`.
const BESIDE_VOCABULARIES: [&str; 10] = [
    "tokenizer_config.json",
    "special_tokens_map.json",
    "training.json",
    "encoding.json",
    "added_tokens.json",
    "chat_template.json",
    "mapping.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
];

/// How many entries each rule left out.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Names that start with a dot.
    pub hidden: u64,
    /// Named by a `.gitignore`, and `.git` itself.
    pub ignored: u64,
    /// Matched by an exclude pattern.
    pub excluded: u64,
    /// Files matched by no include pattern.
    pub not_included: u64,
    /// Links to folders.
    pub folder_links: u64,
    /// Neither files nor folders: sockets, pipes, devices.
    pub special: u64,
    /// Folders that this library wrote.
    pub own: u64,
}

/// The outcome of a walk.
#[derive(Debug, Default)]
pub struct Found {
    /// The folder joined with each file's path in it.
    pub paths: Vec<PathBuf>,
    /// Bytes of each file.
    pub sizes: Vec<u64>,
    /// What was left out.
    pub left_out: LeftOut,
    /// Folders and links that could not be read, and why.
    pub problems: Vec<(PathBuf, String)>,
    /// Numbers of the exclude patterns that left something out.
    pub excluded_by: BTreeSet<usize>,
}

impl Rules {
    /// Rules from patterns, which are relative to the folder that is walked.
    ///
    /// `only` is the pattern of a glob: what it does not match is not counted. `include` and `exclude` patterns
    /// without a slash match a name at any depth. Whatever matches a folder stands for everything in it.
    pub fn new(
        only: Option<&str>,
        include: &[String],
        exclude: &[String],
        gitignore: bool,
        hidden: bool,
    ) -> Result<Self> {
        let only = only.map(|pattern| Ok((set(&whole(pattern))?, set(&on_the_way(pattern))?))).transpose()?;
        let spread =
            |patterns: &[String]| -> Vec<String> { patterns.iter().flat_map(|p| whole(&anywhere(p))).collect() };
        let include = if include.is_empty() { None } else { Some(set(&spread(include))?) };
        Ok(Rules { only, include, exclude: set(&spread(exclude))?, gitignore, hidden, out: None })
    }

    /// The same rules, without the folder or file `out`, relative to the folder that is walked; it is not counted.
    pub fn without(self, out: Option<PathBuf>) -> Self {
        Rules { out, ..self }
    }
}

/// The pattern, and everything under what it matches.
fn whole(pattern: &str) -> Vec<String> {
    let pattern = pattern.trim_end_matches('/');
    vec![pattern.to_owned(), format!("{pattern}/**")]
}

/// A pattern without a slash matches at any depth.
fn anywhere(pattern: &str) -> String {
    let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
    match pattern.trim_end_matches('/').contains('/') {
        true => pattern.trim_start_matches('/').to_owned(),
        false => format!("**/{pattern}"),
    }
}

/// Patterns of the folders that lead to a match, so that `*.txt` does not walk the whole disk.
fn on_the_way(pattern: &str) -> Vec<String> {
    let mut all = whole(pattern);
    // Alternatives may hold slashes; then parts cannot be separated, and every folder may lead to a match.
    if pattern.contains('{') {
        return vec!["**".to_owned()];
    }
    let parts: Vec<&str> = pattern.trim_end_matches('/').split('/').collect();
    for n in 1..=parts.len() {
        all.push(parts[..n].join("/"));
        if parts[n - 1].contains("**") {
            break;
        }
    }
    all
}

/// For each path (from its folder), the number of the first pattern that matches it as `include` would; -1 for none.
pub fn first_match(patterns: &[String], paths: &[PathBuf]) -> Result<Vec<i32>> {
    let sets: Vec<GlobSet> = patterns.iter().map(|pattern| set(&whole(&anywhere(pattern)))).collect::<Result<_>>()?;
    let first = |path: &PathBuf| sets.iter().position(|set| set.is_match(path)).map_or(-1, |n| n as i32);
    Ok(paths.iter().map(first).collect())
}

fn set(patterns: &[String]) -> Result<GlobSet> {
    let mut builder = GlobSetBuilder::new();
    for pattern in patterns {
        let glob = GlobBuilder::new(pattern).literal_separator(true).build();
        builder.add(glob.map_err(|error| Error::Source(format!("pattern {pattern:?}: {}", error.kind())))?);
    }
    builder.build().map_err(|error| Error::Source(format!("patterns {patterns:?}: {error}")))
}

/// Where a walk finds its names: the rules are the same for all of them.
trait Tree {
    /// What a folder holds, in any order: names, and which are folders.
    fn names(&self, inside: &Path) -> io::Result<Vec<(OsString, bool)>>;
    /// The text of the `.gitignore` in a folder that has one.
    fn gitignore(&self, inside: &Path) -> io::Result<Vec<u8>>;
    /// Takes a file that the rules want.
    fn take(&self, inside: &Path, found: &mut Found);
    /// What a place in the tree is called.
    fn path(&self, inside: &Path) -> PathBuf;
}

/// A folder on disk.
struct Disk<'a>(&'a Path);

impl Tree for Disk<'_> {
    fn names(&self, inside: &Path) -> io::Result<Vec<(OsString, bool)>> {
        let here = self.path(inside);
        let on_disk = if here.as_os_str().is_empty() { Path::new(".") } else { &here };
        let mut names = Vec::new();
        for entry in fs::read_dir(on_disk)? {
            let entry = entry?;
            names.push((entry.file_name(), entry.file_type()?.is_dir()));
        }
        Ok(names)
    }

    fn gitignore(&self, inside: &Path) -> io::Result<Vec<u8>> {
        let path = self.path(inside).join(".gitignore");
        // Looked at before it is opened: opening a pipe waits for a writer, and a device has no end.
        if !fs::metadata(&path)?.is_file() {
            return Err(io::Error::other("expected a regular file of patterns"));
        }
        let mut text = Vec::new();
        fs::File::open(&path)?.take(GITIGNORE_BYTES + 1).read_to_end(&mut text)?;
        if text.len() as u64 > GITIGNORE_BYTES {
            return Err(io::Error::other(format!("larger than {GITIGNORE_BYTES} bytes, expected a list of patterns")));
        }
        Ok(text)
    }

    fn take(&self, inside: &Path, found: &mut Found) {
        let path = self.path(inside);
        // Follows links: a link to a file counts as that file.
        match fs::metadata(&path) {
            Ok(meta) if meta.is_file() => {
                found.paths.push(path);
                found.sizes.push(meta.len());
            }
            Ok(meta) if meta.is_dir() => found.left_out.folder_links += 1,
            Ok(_) => found.left_out.special += 1,
            Err(error) => found.problems.push((path, format!("cannot be read: {error}"))),
        }
    }

    fn path(&self, inside: &Path) -> PathBuf {
        self.0.join(inside)
    }
}

/// The files of a folder that lies elsewhere, as somebody else listed them: paths relative to it, with slashes.
#[derive(Debug, Default)]
pub struct Listing {
    folders: BTreeMap<PathBuf, BTreeSet<(OsString, bool)>>,
    // A list, since a bucket may hold `a/b` and `a//b`, which are one path to us and two files.
    files: BTreeMap<PathBuf, Vec<(String, u64)>>,
    gitignores: BTreeMap<PathBuf, Vec<u8>>,
}

impl Listing {
    /// A file, and its size.
    pub fn add(&mut self, path: String, size: u64) {
        let inside = PathBuf::from(path.trim_start_matches('/'));
        let (mut child, mut is_dir) = (inside.as_path(), false);
        while let (Some(folder), Some(name)) = (child.parent(), child.file_name()) {
            self.folders.entry(folder.to_owned()).or_default().insert((name.to_owned(), is_dir));
            (child, is_dir) = (folder, true);
        }
        self.files.entry(inside).or_default().push((path, size));
    }

    /// The text of the `.gitignore` in `folder`.
    pub fn add_gitignore(&mut self, folder: &str, text: Vec<u8>) {
        self.gitignores.insert(PathBuf::from(folder), text);
    }
}

impl Tree for Listing {
    fn names(&self, inside: &Path) -> io::Result<Vec<(OsString, bool)>> {
        Ok(self.folders.get(inside).into_iter().flatten().cloned().collect())
    }

    fn gitignore(&self, inside: &Path) -> io::Result<Vec<u8>> {
        Ok(self.gitignores.get(inside).cloned().unwrap_or_default())
    }

    fn take(&self, inside: &Path, found: &mut Found) {
        for (path, size) in self.files.get(inside).into_iter().flatten() {
            found.paths.push(PathBuf::from(path));
            found.sizes.push(*size);
        }
    }

    fn path(&self, inside: &Path) -> PathBuf {
        inside.to_owned()
    }
}

/// Walks `folder`.
pub fn walk(folder: &Path, rules: &Rules) -> Found {
    let mut found = Found::default();
    walk_into(&Disk(folder), Path::new(""), rules, &mut Vec::new(), &mut found);
    found
}

/// Walks a listing; the paths that come back are those that were put in.
pub fn walk_listing(listing: &Listing, rules: &Rules) -> Found {
    let mut found = Found::default();
    walk_into(listing, Path::new(""), rules, &mut Vec::new(), &mut found);
    found
}

fn walk_into(tree: &impl Tree, inside: &Path, rules: &Rules, ignores: &mut Vec<Gitignore>, found: &mut Found) {
    let mut names = match tree.names(inside) {
        Ok(names) => names,
        Err(error) => return found.problems.push((tree.path(inside), format!("folder cannot be read: {error}"))),
    };
    // The folder that was given is read, whatever it is.
    if !inside.as_os_str().is_empty() && is_own(tree, inside, &names) {
        found.left_out.own += 1;
        return;
    }
    let reports = reports_in(&names);
    // Sorted by name within each folder and walked depth first: ordered by path components.
    names.sort_by(|a, b| a.0.as_encoded_bytes().cmp(b.0.as_encoded_bytes()));
    let depth = ignores.len();
    if rules.gitignore && names.iter().any(|(name, is_dir)| name == ".gitignore" && !is_dir) {
        match tree.gitignore(inside) {
            Ok(text) => ignores.push(parse_gitignore(&text, inside)),
            Err(error) => {
                let path = tree.path(inside).join(".gitignore");
                found.problems.push((path, format!("cannot be read: {error}")));
            }
        }
    }
    for (name, is_dir) in names {
        let inside = inside.join(&name);
        if rules.out.as_ref() == Some(&inside) {
            continue;
        }
        if let Some((wanted, leads)) = &rules.only {
            let matches = if is_dir { leads } else { wanted };
            if !matches.is_match(&inside) {
                continue;
            }
        }
        if !rules.hidden && name.as_encoded_bytes().starts_with(b".") {
            found.left_out.hidden += 1;
        } else if rules.gitignore && (name == ".git" || ignored(ignores, &inside, is_dir)) {
            found.left_out.ignored += 1;
        } else if rules.exclude.is_match(&inside) {
            found.left_out.excluded += 1;
            // Two globs for each pattern: see `whole`.
            found.excluded_by.extend(rules.exclude.matches(&inside).iter().map(|glob| glob / 2));
        } else if !is_dir && reports.contains(&name) {
            found.left_out.own += 1;
        } else if is_dir {
            walk_into(tree, &inside, rules, ignores, found);
        } else if rules.include.as_ref().is_some_and(|include| !include.is_match(&inside)) {
            found.left_out.not_included += 1;
        } else {
            tree.take(&inside, found);
        }
    }
    ignores.truncate(depth);
}

/// Whether a folder is one that this library wrote, by the names in it.
fn is_own(tree: &impl Tree, inside: &Path, names: &[(OsString, bool)]) -> bool {
    let has = |wanted: &str| names.iter().any(|(name, is_dir)| name == wanted && !is_dir);
    let ends = |name: &OsString, ending: &str| name.as_encoded_bytes().ends_with(ending.as_bytes());
    let beside = |name: &OsString| {
        BESIDE_VOCABULARIES.iter().chain(&VOCABULARIES).any(|known| name == known)
            || ends(name, ".model")
            || ends(name, ".jinja")
    };
    let is_tokenizer = || {
        VOCABULARIES.iter().any(|name| has(name))
            && names
                .iter()
                .all(|(name, is_dir)| if *is_dir { name == "additional_chat_templates" } else { beside(name) })
    };
    // Rows of `export`: a folder of numbered files for each split, or a pair of files.
    let numbered = |name: &OsString| {
        let (stem, ending) = name.to_str().and_then(|name| name.split_once('.')).unwrap_or_default();
        stem.len() == 5
            && stem.bytes().all(|byte| byte.is_ascii_digit())
            && matches!(ending, "parquet" | "jsonl" | "jsonl.zst")
    };
    // What a stopped export leaves.
    let unfinished = |name: &OsString| name == ".lock" || ends(name, ".part");
    let is_export = || {
        has("export.json")
            && names.len() > 1
            && names.iter().all(|(name, is_dir)| match *is_dir {
                true => tree
                    .names(&inside.join(name))
                    .is_ok_and(|rows| rows.iter().all(|(row, _)| numbered(row) || unfinished(row))),
                false => name == "export.json" || ends(name, ".bin") || ends(name, ".idx") || unfinished(name),
            })
    };
    OWN.iter().any(|[one, other]| has(one) && has(other)) || is_tokenizer() || is_export()
}

/// The two files of each report among these names: `NAME.html` and `NAME.facts.json`.
fn reports_in(names: &[(OsString, bool)]) -> BTreeSet<OsString> {
    let files: BTreeSet<&OsString> = names.iter().filter(|(_, is_dir)| !is_dir).map(|(name, _)| name).collect();
    let stems = files.iter().filter_map(|name| name.to_str()?.strip_suffix(".facts.json"));
    let pairs = stems.map(|stem| [OsString::from(format!("{stem}.html")), format!("{stem}.facts.json").into()]);
    pairs.filter(|[page, _]| files.contains(page)).flatten().collect()
}

/// The deepest `.gitignore` that has an opinion decides, as in git.
fn ignored(ignores: &[Gitignore], inside: &Path, is_dir: bool) -> bool {
    let opinions = ignores.iter().rev().map(|ignore| ignore.matched(inside, is_dir));
    opinions.into_iter().find(|opinion| !opinion.is_none()).is_some_and(|opinion| opinion.is_ignore())
}

/// The rules of one `.gitignore`; a line that is no pattern is passed over, as git does.
fn parse_gitignore(bytes: &[u8], inside: &Path) -> Gitignore {
    let text = String::from_utf8_lossy(bytes);
    let root = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
    let mut builder = GitignoreBuilder::new(root);
    for line in text.trim_start_matches('\u{FEFF}').lines() {
        // Err: not a pattern.
        let _ = builder.add_line(None, line);
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_only_opens_folders_that_lead_to_a_match() {
        let leads = |pattern: &str, folder: &str| set(&on_the_way(pattern)).expect("a pattern").is_match(folder);
        assert!(!leads("*.txt", "src"));
        assert!(leads("*/b/*.txt", "src") && leads("*/b/*.txt", "src/b") && !leads("*/b/*.txt", "src/c"));
        assert!(leads("a/**/x.py", "a/b/c/d") && !leads("a/**/x.py", "b"));
        assert!(leads("{a/b,c}/*.py", "a"));
    }

    #[test]
    fn a_listing_keeps_files_whose_paths_differ_only_in_slashes_and_files_beside_folders_of_their_name() {
        let mut listing = Listing::default();
        for path in ["b", "a/b", "a//b", "a", ".x/y", "/c"] {
            listing.add(path.to_owned(), 1);
        }
        let rules = Rules::new(None, &[], &[], true, false).expect("rules");
        let found = walk_listing(&listing, &rules);
        let paths: Vec<&str> = found.paths.iter().filter_map(|path| path.to_str()).collect();
        assert_eq!(paths, ["a", "a/b", "a//b", "b", "/c"]);
        assert_eq!(found.left_out.hidden, 1);
    }
}
