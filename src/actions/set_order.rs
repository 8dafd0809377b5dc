//! The order in which CPython walks through a set of small whole numbers.
//!
//! The published implementation adds float64 changes up in that order, and sums of floats depend on theirs. A set is
//! a hash table, a number is its own hash, and nothing is random: the order is a function of the order of insertion.
//! The table's rules (CPython 3.7 to 3.13): it starts with 8 places, looks at up to 9 places after the first, then
//! jumps; three fifths full, it grows to more than four times its members, or twice if they are over 50,000.

const FREE: u32 = u32::MAX;
const NEXT_PLACES: usize = 9;
const LEAST: usize = 8;

/// The members of `set.copy()`, as iteration gives them, after `inserted` were added to an empty set one by one.
///
/// Members must differ from each other and from `u32::MAX`.
pub fn set_order(inserted: &[u32], ordered: &mut Vec<u32>) {
    let mut table = vec![FREE; LEAST];
    for (before, &member) in inserted.iter().enumerate() {
        place(&mut table, member);
        let used = before + 1;
        if is_full(used, table.len()) {
            let grown = larger_than(if used > 50_000 { used * 2 } else { used * 4 });
            table = moved(&table, grown);
        }
    }
    // A copy starts with 8 places as well and makes room for all members at once, for twice as many of them.
    let used = inserted.len();
    let copied = if is_full(used, LEAST) { larger_than(used * 2) } else { LEAST };
    if copied != table.len() {
        table = moved(&table, copied);
    }
    ordered.clear();
    ordered.extend(table.into_iter().filter(|&member| member != FREE));
}

fn is_full(used: usize, places: usize) -> bool {
    used * 5 >= (places - 1) * 3
}

fn larger_than(least: usize) -> usize {
    let mut places = LEAST;
    while places <= least {
        places *= 2;
    }
    places
}

fn moved(table: &[u32], places: usize) -> Vec<u32> {
    let mut grown = vec![FREE; places];
    for &member in table.iter().filter(|&&member| member != FREE) {
        place(&mut grown, member);
    }
    grown
}

fn place(table: &mut [u32], member: u32) {
    let mask = table.len() - 1;
    let (mut at, mut perturb) = (member as usize & mask, member as usize);
    loop {
        let last = if at + NEXT_PLACES <= mask { at + NEXT_PLACES } else { at };
        if let Some(free) = table[at..=last].iter_mut().find(|place| **place == FREE) {
            *free = member;
            return;
        }
        perturb >>= 5;
        at = (at * 5 + 1 + perturb) & mask;
    }
}
