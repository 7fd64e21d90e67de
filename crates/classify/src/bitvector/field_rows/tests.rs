use super::*;

pub(super) fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut seed = seed;
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed ^ seed >> 29
    }
}

/// Up to so many ends among few values, so that first words have several second ones, and the
/// highest.
fn ends(highest: u128, most: u64, next: &mut impl FnMut() -> u64) -> Vec<(u128, usize)> {
    let low = |next: &mut dyn FnMut() -> u64| match next() % 4 {
        0 => u64::MAX,
        1 => 0,
        _ => next() % 9,
    };
    let value = |next: &mut dyn FnMut() -> u64| {
        let high =
            [next() % 5, u64::MAX, u64::MAX - 1, next()][usize::try_from(next() % 4).unwrap()];
        (u128::from(high) << 64 | u128::from(low(next))) & highest
    };
    let mut values: Vec<_> = (0..next() % most).map(|_| value(next)).chain([highest]).collect();
    values.sort_unstable();
    values.dedup();
    values.into_iter().map(|end| (end, usize::try_from(next() % LEAF_ROWS).unwrap())).collect()
}

const LEAF_ROWS: u64 = 7;

/// The stretches of up to so many prefixes, inside each other and side by side, of a few lengths;
/// with their rows.
pub(super) fn nested(most: u64, next: &mut impl FnMut() -> u64) -> Vec<(u128, usize)> {
    let lengths = [16, 63, 64, 65, 100, 127, 128];
    let wide = |next: &mut dyn FnMut() -> u64| u128::from(next()) << 64 | u128::from(next());
    let sites: Vec<_> = (0..4).map(|_| wide(next)).chain([0, u128::MAX]).collect();
    let prefix = |next: &mut dyn FnMut() -> u64| {
        let [site, length] =
            [sites.len(), lengths.len()].map(|count| usize::try_from(next()).unwrap() % count);
        let open = u128::MAX.checked_shr(lengths[length]).unwrap_or(0);
        let near = wide(next) & (u128::MAX >> (next() % 128));
        let first = (sites[site] ^ near) & !open;
        (first, first | open, usize::try_from(next() % LEAF_ROWS).unwrap())
    };
    let mut prefixes: Vec<_> = (0..next() % most).map(|_| prefix(next)).collect();
    prefixes.sort_unstable_by_key(|(first, last, _)| last - first);
    let bounds = prefixes.iter().flat_map(|(first, last, _)| [first.checked_sub(1), Some(*last)]);
    let mut bounds: Vec<_> = bounds.flatten().chain([u128::MAX]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let inner = |end: u128| {
        let around = prefixes.iter().find(|(first, last, _)| (*first..=*last).contains(&end));
        around.map_or(0, |(_, _, row)| *row)
    };
    bounds.into_iter().map(|end| (end, inner(end))).collect()
}

fn field(
    place: FieldLocation,
    words: usize,
    most: u64,
    next: &mut impl FnMut() -> u64,
) -> KeyField {
    let highest = match place {
        FieldLocation::Bits { bits, .. } => (1 << bits) - 1,
        FieldLocation::Words(_) => u128::MAX,
    };
    let ends = match place {
        FieldLocation::Bits { .. } => ends(highest, most, next),
        FieldLocation::Words(_) => nested(most, next),
    };
    let rows = usize::try_from(LEAF_ROWS).unwrap() * words;
    KeyField { place, ends, rows: (0..rows).map(|_| next() | next()).collect() }
}

/// The row that a key stands for.
fn row<'a>(field: &'a KeyField, words: usize, key: &[u64]) -> &'a [u64] {
    let value = match field.place {
        FieldLocation::Bits { word, shift, bits } => {
            u128::from(key[word] >> shift) & ((1 << bits) - 1)
        }
        FieldLocation::Words(word) => u128::from(key[word]) << 64 | u128::from(key[word + 1]),
    };
    let (_, row) = field.ends[field.ends.partition_point(|(end, _)| *end < value)];
    &field.rows[row * words..][..words]
}

/// A key.
struct Words<const N: usize>([u64; N]);

impl<const N: usize> AsRef<[u64; N]> for Words<N> {
    fn as_ref(&self) -> &[u64; N] {
        &self.0
    }
}

/// What the processor has, and the form for those that have less.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
#[cfg_attr(miri, ignore = "minutes there")]
fn rows_agree_with_bit_scan() {
    let mut next = numbers(1);
    for words in [1, 8, 9, 16, 17, 24, 32, 33, 64, 100].into_iter().cycle().take(400) {
        let most = [2, 9, 200, 4000][usize::try_from(next() % 4).unwrap()];
        let places = [
            FieldLocation::Words(0),
            FieldLocation::Bits { word: 2, shift: 32, bits: 32 },
            FieldLocation::Bits { word: 2, shift: 24, bits: 8 },
            FieldLocation::Bits { word: 1, shift: 0, bits: 16 },
        ];
        let fields: Vec<_> = places.map(|place| field(place, words, most, &mut next)).into();
        let grid = FieldRows::of(words, &fields).unwrap();
        assert_eq!((grid.rows_read(), grid.width() >= words.div_ceil(8)), (4, true));
        let mut live = vec![BitLine::default(); grid.width()];
        live.iter_mut().flat_map(|line| &mut line.0).for_each(|word| *word = next() & next());
        // Sometimes there is nothing in the first words, or in the first block.
        let none = usize::try_from(next() % 3).unwrap() * words / 2;
        live.iter_mut().flat_map(|line| &mut line.0).take(none).for_each(|word| *word = 0);
        let few = |next: &mut dyn FnMut() -> u64| {
            [next() % 9, u64::MAX, next(), 0][usize::try_from(next() % 4).unwrap()]
        };
        let key = |next: &mut dyn FnMut() -> u64| Words([0; 3].map(|_| few(next)));
        let keys: Vec<_> = (0..next() % 70).map(|_| key(&mut next)).collect();
        let mut found = vec![7; keys.len()];
        grid.find_first_batch(&keys, &live, &mut found);
        for (Words(key), found) in keys.iter().zip(found) {
            let rows: Vec<_> = fields.iter().map(|field| row(field, words, key)).collect();
            let is_set = |bit: &usize| {
                let live = live[bit / 512].0[bit / 64 % 8];
                rows.iter().fold(live, |all, row| all & row[bit / 64]) >> (bit % 64) & 1 != 0
            };
            let first = |from: usize| {
                (from..words * 64).find(is_set).map(|bit| u32::try_from(bit).unwrap())
            };
            assert_eq!(Some(found).filter(|bit| (*bit as usize) < words * 64), first(0));
            let from = usize::try_from(next()).unwrap() % (words * 64 + 9);
            assert_eq!(grid.find_first_from(key, &live, from), first(from));
        }
    }
}

/// They stand for what they stand for with zeros behind.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn field_rows_short_keys_are_not_read_beyond() {
    let mut next = numbers(2);
    let places = [FieldLocation::Bits { word: 0, shift: 0, bits: 16 }, FieldLocation::Words(1)];
    let fields: Vec<_> = places.map(|place| field(place, 9, 200, &mut next)).into();
    let grid = FieldRows::of(9, &fields).unwrap();
    let live = vec![BitLine([u64::MAX; 8]); grid.width()];
    for _ in 0..50 {
        let (mut short, mut long) = ([0], [0]);
        let key = next();
        grid.find_first_batch(&[Words([key, 7])], &live, &mut short);
        grid.find_first_batch(&[Words([key, 7, 0])], &live, &mut long);
        assert_eq!(short, long);
    }
}

#[test]
fn field_rows_invalid_input_is_none() {
    let place = FieldLocation::Bits { word: 0, shift: 0, bits: 8 };
    let of = |ends: &[(u128, usize)]| {
        FieldRows::of(1, &[KeyField { place, ends: ends.to_vec(), rows: vec![1, 2] }])
    };
    assert!(of(&[(5, 0), (255, 1)]).is_some());
    assert!(of(&[(5, 0), (255, 2)]).is_none(), "no such row");
    assert!(of(&[(5, 0)]).is_none(), "not to the highest value");
    assert!(of(&[(5, 0), (5, 1), (255, 0)]).is_none(), "not in order");
    let field = KeyField { place, ends: vec![(255, 0)], rows: vec![1] };
    assert!(FieldRows::of(1, &vec![field; MAX_KEY_FIELDS + 1]).is_none());
}
