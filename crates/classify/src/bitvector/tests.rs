use super::*;

fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut seed = seed;
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed ^ seed >> 29
    }
}

/// A field of up to twelve rows, some numbers of which are of none.
fn field(width: usize, gaps: u64, next: &mut impl FnMut() -> u64) -> ByteField {
    let rows = 1 + next() % 12;
    // Dense enough that some bits are left, and one word in `gaps` empty.
    let word = |next: &mut dyn FnMut() -> u64| match next() % gaps {
        0 => 0,
        _ => next() | next() | next() | next(),
    };
    ByteField {
        place: usize::try_from(next() % 18).unwrap(),
        numbers: std::array::from_fn(|_| u16::try_from(next() % 14).unwrap()),
        rows: (0..usize::try_from(rows).unwrap() * width).map(|_| word(next)).collect(),
    }
}

/// Whether the row that a key stands for has a bit.
fn has(field: &ByteField, key: &[u64; 2], width: usize, bit: usize) -> bool {
    let byte = key[field.place / 8].to_le_bytes()[field.place % 8];
    let row = usize::from(field.numbers[usize::from(byte)]).min(field.rows.len() / width - 1);
    field.rows[row * width + bit / 64] >> (bit % 64) & 1 != 0
}

/// What the processor has, and the forms for those that have less.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn rows_agree_with_bit_scan() {
    let mut next = numbers(1);
    for (width, count) in [1, 2, 4, 8, 16, 32, 48].into_iter().flat_map(|width| {
        [0, 1, 2, 3, 4, 5, 30].repeat(6).into_iter().map(move |count| (width, count))
    }) {
        let mut fields: Vec<ByteField> = Vec::new();
        for field in
            std::iter::repeat_with(|| field(width, if count > 5 { 40 } else { 4 }, &mut next))
                .take(count)
        {
            // A byte has one field.
            fields.retain(|other| other.place != field.place);
            fields.push(field);
        }
        // Where most bytes are asked for something and each once, in their order, all are looked
        // up.
        if count > 5 {
            fields.sort_by_key(|field| field.place);
            fields.truncate(usize::try_from(8 + next() % 9).unwrap());
        }
        let all = ByteRows::of(2, width, &fields);
        fields.retain(|field| field.place < 8 || (8 + UNUSED_BYTES..16).contains(&field.place));
        let key = [next(), next()];
        let mut live = vec![BitLine::default(); width.div_ceil(8)];
        live.iter_mut().flat_map(|line| &mut line.0).for_each(|word| *word = next() | next());
        // Sometimes there is nothing in the first words, or in the first block.
        let none = usize::try_from(next() % 3).unwrap() * width / 2;
        live.iter_mut().flat_map(|line| &mut line.0).take(none).for_each(|word| *word = 0);
        let set = |bit: usize| {
            words(&live)[bit / 64] >> (bit % 64) & 1 != 0
                && fields.iter().all(|field| has(field, &key, width, bit))
        };
        let first = |from: usize| (from..width * 64).find(|bit| set(*bit));
        let mut found = [7; 2];
        all.find_first_batch(&[key, [0; 2]], &live, &mut found[..1]);
        let is = |found: u32| Some(found as usize).filter(|found| *found < 64 * width);
        assert_eq!((is(found[0]), found[1]), (first(0), 7));
        assert_eq!(is(all.find_first(&key, &live)), first(0));
        for from in (0..width * 64).step_by(13) {
            let expected = first(from).map(|bit| u32::try_from(bit).unwrap());
            assert_eq!(all.find_first_from(&key, &live, from), expected);
            if width >= 8 {
                let mut numbers = [0; MAX_FIELDS];
                let rest = all.row_scan(&key, &live, &mut numbers);
                assert_eq!(rest.search::<8>(from), first(from));
            }
        }
        all.find_first_batch(&[key], &[], &mut found);
        assert_eq!(is(found[0]), None, "among none");
        assert_eq!(is(all.find_first(&key, &[])), None, "among none");
    }
}

/// Places of rows are counted in words while these are few enough, and in rows otherwise.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn byte_rows_many_rows_agree_with_bit_scan() {
    let mut next = numbers(5);
    // Words, rows of each byte, and a word of which nothing is asked.
    for (words, rows, open) in
        [(2, 2, 5), (2, 300, 5), (5, 4, 5), (5, 4, 1), (5, 90, 0), (5, 256, 5)]
    {
        let field = |place: usize| ByteField {
            place,
            numbers: std::array::from_fn(|value| u16::try_from(value % rows).unwrap()),
            rows: (0..16 * rows).map(|_| next() | next() | next() | next()).collect(),
        };
        let is_asked = |place: &usize| !place.is_multiple_of(7) && place / 8 != open;
        let in_key = |place: &usize| place / 8 < words - 1 || place % 8 >= UNUSED_BYTES;
        let fields: Vec<_> = (0..8 * words).filter(is_asked).filter(in_key).map(field).collect();
        let all = ByteRows::of(words, 16, &fields);
        let layout = match (words, fields.len() * rows * 16 > 1 << 16) {
            (_, true) => ByteLayout::Listed,
            (2, false) => ByteLayout::Two,
            (_, false) => ByteLayout::ByWords,
        };
        assert_eq!((all.layout, all.shift != 0), (layout, layout == ByteLayout::Listed));
        for _ in 0..50 {
            let key: Vec<u64> = (0..words).map(|_| next()).collect();
            let has = |field: &ByteField, bit: usize| {
                let byte = key[field.place / 8].to_le_bytes()[field.place % 8];
                field.rows[usize::from(field.numbers[usize::from(byte)]) * 16 + bit / 64]
                    >> (bit % 64)
                    & 1
                    != 0
            };
            let first = (0..16 * 64).find(|bit| fields.iter().all(|field| has(field, *bit)));
            let mut found = [0];
            all.find_first_batch(&[&key], &[BitLine([u64::MAX; 8]); 2], &mut found);
            let is = |found: u32| Some(found as usize).filter(|found| *found < 16 * 64);
            assert_eq!(is(found[0]), first);
            assert_eq!(is(all.find_first(&key, &[BitLine([u64::MAX; 8]); 2])), first);
            assert_eq!(
                all.find_first_from(&key, &[BitLine([u64::MAX; 8]); 2], 0).map(|bit| bit as usize),
                first
            );
        }
    }
}

/// Where most bytes are asked for something they are looked up word by word, unless one has two
/// fields or they are in another order.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn byte_rows_two_fields_of_one_byte_both_match() {
    let mut next = numbers(9);
    let mut sparse = |place: usize| ByteField {
        place,
        numbers: std::array::from_fn(|value| u16::try_from(value % 3).unwrap()),
        rows: (0..3 * 2).map(|_| next() | next() | next()).collect(),
    };
    let once: Vec<_> = (0..8).chain(8 + UNUSED_BYTES..16).map(&mut sparse).collect();
    let twice: Vec<_> = (0..8).chain([7]).chain(8 + UNUSED_BYTES..16).map(&mut sparse).collect();
    let turned: Vec<_> = once.iter().rev().cloned().collect();
    for (fields, layout) in
        [(once, ByteLayout::Two), (twice, ByteLayout::Listed), (turned, ByteLayout::Listed)]
    {
        let all = ByteRows::of(2, 2, &fields);
        assert_eq!(all.layout, layout);
        for seed in 0..200_u64 {
            let key = [seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), seed << 40 | seed << 24];
            let first = (0..128).find(|bit| fields.iter().all(|field| has(field, &key, 2, *bit)));
            let (live, mut found) = ([BitLine([u64::MAX; 8])], [0]);
            all.find_first_batch(&[key], &live, &mut found);
            for found in [found[0], all.find_first(&key, &live)] {
                assert_eq!(Some(found as usize).filter(|found| *found < 128), first);
            }
        }
    }
}

/// A key that lacks a word that is asked for.
#[test]
fn byte_rows_missing_key_word_matches_all() {
    let field = |place: usize, row: u64| ByteField { place, numbers: [0; VALUES], rows: vec![row] };
    let all = ByteRows::of(2, 1, &[field(0, 0b0110), field(12, 0b1100)]);
    let (live, mut found) = ([BitLine([u64::MAX; 8])], [0]);
    for (key, bit) in [(&[0, 0][..], 2), (&[0][..], 1), (&[][..], 0)] {
        all.find_first_batch(&[key], &live, &mut found);
        assert_eq!((found[0], all.find_first(&key, &live)), (bit, bit), "{} words", key.len());
    }
}

/// Row numbers end somewhere.
#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn byte_rows_field_beyond_row_limit_is_ignored() {
    let field = |place: usize, row: u64, rows: usize| ByteField {
        place,
        numbers: [0; VALUES],
        rows: vec![row; rows],
    };
    let of = |fields: &[ByteField]| {
        ByteRows::of(2, 1, fields).find_first_from(&[0; 2], &[BitLine([u64::MAX; 8])], 0)
    };
    let (one, other) = (field(0, 0b0110, 65_535), field(1, 0b1100, 1));
    assert_eq!(of(&[one.clone(), other.clone()]), Some(1));
    assert_eq!(of(&[other, one]), Some(2));
    assert_eq!(of(&[field(0, 0, 0)]), Some(0), "no rows");
}
