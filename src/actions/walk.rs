//! The pairs of a sequence and their weights, in the published order: a set, then it and what comes next.

use super::state::{Node, set_of};
use super::weight::{Scale, Weight};
use crate::bpe::pair::{Pair, pair};

/// Every pair in and between `nodes`, and between them and the nodes `before` and `after`, in the published order.
#[inline(always)]
pub fn each_pair<'n, W: Weight>(
    before: Option<Node<'n>>,
    nodes: impl Iterator<Item = Node<'n>>,
    after: Option<Node<'n>>,
    scale: &Scale<W>,
    mut found: impl FnMut(Pair, W),
) {
    let mut last = before;
    for node in nodes {
        if let Some(last) = last {
            across(last, node, scale, &mut found);
        }
        let set = set_of(node);
        let weight = scale.inside(set.len());
        for (at, &x) in set.iter().enumerate() {
            for &y in &set[at + 1..] {
                found(unordered(x, y), weight);
            }
        }
        last = Some(node);
    }
    if let (Some(last), Some(after)) = (last, after) {
        across(last, after, scale, &mut found);
    }
}

#[inline(always)]
fn across<W: Weight>(left: Node<'_>, right: Node<'_>, scale: &Scale<W>, found: &mut impl FnMut(Pair, W)) {
    let (context, left, right) = (left[0], set_of(left), set_of(right));
    if context != 0 {
        let weight = scale.across(left.len(), 1);
        left.iter().for_each(|&x| found(unordered(x, context), weight));
        let weight = scale.across(1, right.len());
        right.iter().for_each(|&y| found(unordered(context, y), weight));
    } else {
        let weight = scale.across(left.len(), right.len());
        let double = left.iter().any(|x| right.contains(x));
        for &x in left {
            for &y in right {
                // Two tokens that are both in both sets meet twice; as one sum, since the block is summed first.
                if double && x != y && left.contains(&y) && right.contains(&x) {
                    if x < y {
                        found(unordered(x, y), weight.plus(weight));
                    }
                } else {
                    found(unordered(x, y), weight);
                }
            }
        }
    }
}

fn unordered(x: u32, y: u32) -> Pair {
    if x < y { pair(x, y) } else { pair(y, x) }
}

/// Tokens to look for, and a walk over the pairs of such tokens.
#[derive(Default)]
pub struct Marks {
    marked: Vec<bool>,
    tokens: Vec<u32>,
    /// What is marked of one node and of the one before it, as nodes.
    here: Vec<u32>,
    last: Vec<u32>,
}

impl Marks {
    /// Makes room for the tokens below `ids`.
    pub fn resize(&mut self, ids: usize) {
        self.marked.resize(ids, false);
    }

    pub fn add(&mut self, token: u32) {
        if token != 0 && !self.marked[token as usize] {
            self.marked[token as usize] = true;
            self.tokens.push(token);
        }
    }

    pub fn any(&self) -> bool {
        !self.tokens.is_empty()
    }

    pub fn clear(&mut self) {
        for token in self.tokens.drain(..) {
            self.marked[token as usize] = false;
        }
    }

    /// As [`each_pair`] over a whole sequence, but only pairs of marked tokens.
    pub fn each_pair<'n, W: Weight>(
        &mut self,
        nodes: impl Iterator<Item = Node<'n>>,
        scale: &Scale<W>,
        mut found: impl FnMut(Pair, W),
    ) {
        let (here, last) = (&mut self.here, &mut self.last);
        let mut last_size = 0;
        let mut last_context = 0; // 0: none; the slot is taken all the same if it has a token that is not marked
        let mut last_open = false;
        last.clear();
        for node in nodes {
            let set = set_of(node);
            here.clear();
            here.extend(set.iter().filter(|&&token| self.marked[token as usize]));
            if !here.is_empty() {
                if last_open {
                    let weight = scale.across(last_size, set.len());
                    let double = last.iter().any(|x| here.contains(x));
                    for &x in last.iter() {
                        for &y in here.iter() {
                            if double && x != y && last.contains(&y) && here.contains(&x) {
                                if x < y {
                                    found(unordered(x, y), weight.plus(weight));
                                }
                            } else {
                                found(unordered(x, y), weight);
                            }
                        }
                    }
                } else if last_context != 0 {
                    let weight = scale.across(1, set.len());
                    here.iter().for_each(|&y| found(unordered(last_context, y), weight));
                }
                let weight = scale.inside(set.len());
                for (at, &x) in here.iter().enumerate() {
                    for &y in &here[at + 1..] {
                        found(unordered(x, y), weight);
                    }
                }
            }
            let context = node[0];
            last_open = context == 0;
            last_context = if self.marked[context as usize] { context } else { 0 };
            if last_context != 0 {
                let weight = scale.across(set.len(), 1);
                here.iter().for_each(|&x| found(unordered(x, context), weight));
            }
            last_size = set.len();
            std::mem::swap(here, last);
        }
    }
}
