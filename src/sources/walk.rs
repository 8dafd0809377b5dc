//! A folder -> its files, in a stable order.
//!
//! In: a folder and the rules. Out: the files that are wanted with their sizes, ordered by path, component by
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
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// What a walk wants.
#[derive(Debug)]
pub struct Rules {
    only: Option<(GlobSet, GlobSet)>,
    include: Option<GlobSet>,
    exclude: GlobSet,
    gitignore: bool,
    hidden: bool,
}

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
        Ok(Rules { only, include, exclude: set(&spread(exclude))?, gitignore, hidden })
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
    // Alternatives may hold slashes; then parts cannot be told apart, and every folder may lead to a match.
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

/// Walks `folder`.
pub fn walk(folder: &Path, rules: &Rules) -> Found {
    let mut found = Found::default();
    let mut ignores = Vec::new();
    walk_into(folder, Path::new(""), rules, &mut ignores, &mut found);
    found
}

fn walk_into(folder: &Path, inside: &Path, rules: &Rules, ignores: &mut Vec<Gitignore>, found: &mut Found) {
    let here = folder.join(inside);
    let on_disk = if here.as_os_str().is_empty() { Path::new(".") } else { &here };
    // Sorted by name within each folder and walked depth first: ordered by path components.
    let names = fs::read_dir(on_disk).and_then(|entries| {
        let mut names: Vec<(OsString, fs::FileType)> = Vec::new();
        for entry in entries {
            let entry = entry?;
            names.push((entry.file_name(), entry.file_type()?));
        }
        names.sort_by(|a, b| a.0.as_encoded_bytes().cmp(b.0.as_encoded_bytes()));
        Ok(names)
    });
    let names = match names {
        Ok(names) => names,
        Err(error) => return found.problems.push((here, format!("folder cannot be read: {error}"))),
    };
    let depth = ignores.len();
    if rules.gitignore && names.iter().any(|(name, kind)| name == ".gitignore" && !kind.is_dir()) {
        match read_gitignore(&here.join(".gitignore"), inside) {
            Ok(ignore) => ignores.push(ignore),
            Err(error) => found.problems.push((here.join(".gitignore"), format!("cannot be read: {error}"))),
        }
    }
    for (name, kind) in names {
        let inside = inside.join(&name);
        if let Some((wanted, leads)) = &rules.only {
            let matches = if kind.is_dir() { leads } else { wanted };
            if !matches.is_match(&inside) {
                continue;
            }
        }
        if !rules.hidden && name.as_encoded_bytes().starts_with(b".") {
            found.left_out.hidden += 1;
        } else if rules.gitignore && (name == ".git" || ignored(ignores, &inside, kind.is_dir())) {
            found.left_out.ignored += 1;
        } else if rules.exclude.is_match(&inside) {
            found.left_out.excluded += 1;
        } else if kind.is_dir() {
            walk_into(folder, &inside, rules, ignores, found);
        } else if rules.include.as_ref().is_some_and(|include| !include.is_match(&inside)) {
            found.left_out.not_included += 1;
        } else {
            let path = folder.join(&inside);
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
    }
    ignores.truncate(depth);
}

/// The deepest `.gitignore` that has an opinion decides, as in git.
fn ignored(ignores: &[Gitignore], inside: &Path, is_dir: bool) -> bool {
    let opinions = ignores.iter().rev().map(|ignore| ignore.matched(inside, is_dir));
    opinions.into_iter().find(|opinion| !opinion.is_none()).is_some_and(|opinion| opinion.is_ignore())
}

/// The rules of one `.gitignore`; a line that is no pattern is passed over, as git does.
fn read_gitignore(path: &Path, inside: &Path) -> std::io::Result<Gitignore> {
    let bytes = fs::read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let root = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
    let mut builder = GitignoreBuilder::new(root);
    for line in text.trim_start_matches('\u{FEFF}').lines() {
        // Err: not a pattern.
        let _ = builder.add_line(None, line);
    }
    Ok(builder.build().unwrap_or_else(|_| Gitignore::empty()))
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
    fn a_pattern_that_is_none_says_which() {
        let error = Rules::new(None, &["[".into()], &[], true, false).expect_err("no pattern");
        assert!(error.to_string().starts_with("pattern \"**/[\": "), "{error}");
    }
}
