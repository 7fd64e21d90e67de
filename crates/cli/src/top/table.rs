//! A table as every view has one: columns that a narrow screen may leave out, rows that can be
//! sorted by any column and filtered by any text.

use std::cmp::Ordering;

use super::text::escaped;

/// How a column's cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// Its head.
    pub(crate) title: &'static str,
    /// Its least width.
    pub(crate) width: u16,
    /// Where its cells stand.
    pub(crate) align: Align,
    /// A screen that is too narrow leaves out those of higher ranks.
    pub(crate) rank: u8,
    /// Its share of the room that is left; 0 for none.
    pub(crate) share: u16,
}

/// What a cell says of itself by its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Warn,
    Bad,
    Dim,
}

/// A cell: what it shows, and what it is sorted by.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
    /// `None` sorts by text.
    value: Option<f64>,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// What tells it from others, in all samples.
    pub(crate) key: String,
    pub(crate) cells: Vec<Cell>,
    /// What more there is to say of it, a line each.
    pub(crate) detail: Vec<String>,
}

/// What a view shows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Row>,
    /// What stands there instead of rows.
    pub(crate) empty: &'static str,
    /// What rows leave out, if they do.
    pub(crate) note: Option<String>,
}

/// By what, and which way, rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) column: usize,
    pub(crate) direction: SortDirection,
}

/// Which way rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SortDirection {
    Ascending,
    Descending,
}

impl Column {
    /// Text of at least this width.
    pub(crate) const fn text(title: &'static str, width: u16, rank: u8) -> Self {
        Self { title, width, align: Align::Left, rank, share: 0 }
    }

    /// Numbers.
    pub(crate) const fn number(title: &'static str, width: u16, rank: u8) -> Self {
        Self { title, width, align: Align::Right, rank, share: 0 }
    }

    /// The same with a share of the room that is left.
    pub(crate) const fn growing(self, share: u16) -> Self {
        Self { share, ..self }
    }
}

impl Cell {
    /// Text, which may come from anywhere.
    pub(crate) fn text(text: &str) -> Self {
        Self { text: escaped(text), tone: Tone::Plain, value: None }
    }

    /// A number as text.
    pub(crate) fn number(value: f64, text: String) -> Self {
        Self { text, tone: Tone::Plain, value: Some(value) }
    }

    /// A number that is not known, or not yet.
    pub(crate) fn unknown() -> Self {
        Self { text: "-".to_owned(), tone: Tone::Dim, value: Some(-1.0) }
    }

    /// Text that is sorted by a number.
    pub(crate) fn ranked(value: f64, text: &str) -> Self {
        Self { value: Some(value), ..Self::text(text) }
    }

    /// The same in another tone.
    pub(crate) fn toned(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self.value, other.value) {
            (Some(own), Some(others)) => own.total_cmp(&others),
            (None, _) | (_, None) => self.text.cmp(&other.text),
        }
    }
}

impl Row {
    fn has(&self, words: &str) -> bool {
        let has = |text: &String| text.to_lowercase().contains(words);
        self.cells.iter().any(|cell| has(&cell.text)) || self.detail.iter().any(has)
    }
}

impl Order {
    /// By this column, the highest first.
    pub(crate) const fn descending(column: usize) -> Self {
        Self { column, direction: SortDirection::Descending }
    }

    /// By this column, the lowest first.
    pub(crate) const fn ascending(column: usize) -> Self {
        Self { column, direction: SortDirection::Ascending }
    }

    /// The other way round.
    pub(crate) const fn reversed(self) -> Self {
        let direction = match self.direction {
            SortDirection::Ascending => SortDirection::Descending,
            SortDirection::Descending => SortDirection::Ascending,
        };
        Self { direction, ..self }
    }
}

impl Table {
    /// Leaves only rows that have these words, in any case.
    pub(crate) fn filter(&mut self, words: &str) {
        let words = words.to_lowercase();
        self.rows.retain(|row| row.has(&words));
    }

    /// Sorts its rows; of equal ones the order stays.
    pub(crate) fn sort(&mut self, order: Order) {
        let column = order.column;
        self.rows.sort_by(|one, other| {
            let by = match (one.cells.get(column), other.cells.get(column)) {
                (Some(one), Some(other)) => one.compare(other),
                (None, _) | (_, None) => Ordering::Equal,
            };
            match order.direction {
                SortDirection::Ascending => by,
                SortDirection::Descending => by.reverse(),
            }
        });
    }

    /// The columns that fit a width, with one cell between two, by their indices, and how wide each
    /// is.
    pub(crate) fn fit(&self, width: u16) -> Vec<(usize, u16)> {
        let mut by_rank: Vec<usize> = (0..self.columns.len()).collect();
        by_rank.sort_by_key(|index| self.columns[*index].rank);
        let mut left = width;
        let mut taken = Vec::new();
        for index in by_rank {
            let gap = u16::from(!taken.is_empty());
            let Some(rest) = left.checked_sub(self.columns[index].width + gap) else { break };
            left = rest;
            taken.push(index);
        }
        taken.sort_unstable();
        self.share_out(&taken, left)
    }

    fn share_out(&self, taken: &[usize], left: u16) -> Vec<(usize, u16)> {
        let shares: u16 = taken.iter().map(|index| self.columns[*index].share).sum();
        let mut rest = left;
        let wide = taken.iter().map(|&index| {
            let Column { width, share, .. } = self.columns[index];
            let more = (left * share).checked_div(shares).unwrap_or_default().min(rest);
            rest -= more;
            (index, width + more)
        });
        wide.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column::text("NAME", 4, 0).growing(1),
        Column::number("IN", 5, 1),
        Column::number("OUT", 5, 2),
    ];

    fn table() -> Table {
        let row = |name: &str, input: f64, output: Option<f64>| Row {
            key: name.to_owned(),
            cells: vec![
                Cell::text(name),
                Cell::number(input, format!("{input}")),
                output.map_or_else(Cell::unknown, |output| Cell::number(output, String::new())),
            ],
            detail: vec![format!("about {name}")],
        };
        let rows = vec![row("b", 9.0, Some(0.0)), row("a", 10.0, None), row("c", 9.0, Some(2.0))];
        Table { columns: COLUMNS, rows, empty: "", note: None }
    }

    fn keys(table: &Table) -> String {
        table.rows.iter().map(|row| row.key.as_str()).collect()
    }

    #[test]
    fn numbers_sort_as_numbers_and_text_as_text() {
        let mut table = table();
        for (order, wanted) in [
            (Order::ascending(0), "abc"),
            (Order::descending(1), "abc"),
            (Order::ascending(1), "bca"),
            (Order::descending(2), "cba"),
            (Order::descending(2).reversed(), "abc"),
            (Order::ascending(7), "abc"),
        ] {
            table.sort(order);
            assert_eq!(keys(&table), wanted, "{order:?}");
        }
    }

    #[test]
    fn filter_looks_at_cells_and_details() {
        for (words, left) in [("ABOUT B", "b"), ("10", "a"), ("", "bac"), ("nothing", "")] {
            let mut table = table();
            table.filter(words);
            assert_eq!(keys(&table), left, "{words}");
        }
    }

    #[test]
    fn narrow_screens_leave_out_columns_by_rank() {
        let table = table();
        assert_eq!(table.fit(20), [(0, 8), (1, 5), (2, 5)]);
        assert_eq!(table.fit(16), [(0, 4), (1, 5), (2, 5)]);
        assert_eq!(table.fit(15), [(0, 9), (1, 5)]);
        assert_eq!(table.fit(4), [(0, 4)]);
        assert_eq!(table.fit(3), []);
    }

    #[test]
    fn text_from_elsewhere_has_no_control_characters() {
        assert_eq!(Cell::text("a\x1b[31mb\n").text, "a\\u{1b}[31mb\\n");
    }
}
