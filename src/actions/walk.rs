//! The pairs of a sequence and their weights, in the published order: a set, then it and what comes next.

use super::state::{Node, set_of};
use super::weight::{Scale, Weight};
use crate::bpe::pair::{Pair, pair};

/// What a walk looks at in a node: its set, or the tokens of it that are looked for.
#[derive(Clone, Copy)]
struct Seen<'n> {
    set: &'n [u32],
    /// Of the whole set.
    size: usize,
    /// The token in the slot behind the set; 0: none that is looked for.
    context: u32,
    /// Nothing is in the slot.
    open: bool,
}

/// Every pair in and between `nodes`, and between them and the nodes `before` and `after`, in the published order.
#[inline(always)]
pub fn each_pair<'n, W: Weight>(
    before: Option<Node<'n>>,
    nodes: impl Iterator<Item = Node<'n>>,
    after: Option<Node<'n>>,
    scale: &Scale<W>,
    mut found: impl FnMut(Pair, W),
) {
    let seen = |node: Node<'n>| {
        let set = set_of(node);
        Seen { set, size: set.len(), context: node[0], open: node[0] == 0 }
    };
    let mut last = before.map(seen);
    for node in nodes.map(seen) {
        if let Some(last) = last {
            across(last, node, scale, &mut found);
        }
        inside(node, scale, &mut found);
        last = Some(node);
    }
    if let (Some(last), Some(after)) = (last, after) {
        across(last, seen(after), scale, &mut found);
    }
}

#[inline(always)]
fn inside<W: Weight>(node: Seen<'_>, scale: &Scale<W>, found: &mut impl FnMut(Pair, W)) {
    let weight = scale.inside(node.size);
    for (at, &x) in node.set.iter().enumerate() {
        for &y in &node.set[at + 1..] {
            found(unordered(x, y), weight);
        }
    }
}

#[inline(always)]
fn across<W: Weight>(left: Seen<'_>, right: Seen<'_>, scale: &Scale<W>, found: &mut impl FnMut(Pair, W)) {
    if left.open {
        let weight = scale.across(left.size, right.size);
        let double = left.set.iter().any(|x| right.set.contains(x));
        for &x in left.set {
            for &y in right.set {
                // Two tokens that are both in both sets meet twice; as one sum, since the block is summed first.
                if double && x != y && left.set.contains(&y) && right.set.contains(&x) {
                    if x < y {
                        found(unordered(x, y), weight + weight);
                    }
                } else {
                    found(unordered(x, y), weight);
                }
            }
        }
    } else if left.context != 0 {
        let weight = scale.across(left.size, 1);
        left.set.iter().for_each(|&x| found(unordered(x, left.context), weight));
        let weight = scale.across(1, right.size);
        right.set.iter().for_each(|&y| found(unordered(left.context, y), weight));
    }
}

/// The pair of two tokens, the smaller one first.
pub fn unordered(x: u32, y: u32) -> Pair {
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
        let mut before = None; // of the last node: the size of its set, its context, whether its slot is open
        for node in nodes {
            let set = set_of(node);
            here.clear();
            here.extend(set.iter().filter(|&&token| self.marked[token as usize]));
            let context = if self.marked[node[0] as usize] { node[0] } else { 0 };
            let seen = Seen { set: here, size: set.len(), context, open: node[0] == 0 };
            if let Some((size, context, open)) = before {
                across(Seen { set: last, size, context, open }, seen, scale, &mut found);
            }
            inside(seen, scale, &mut found);
            before = Some((seen.size, seen.context, seen.open));
            std::mem::swap(here, last);
        }
    }
}
