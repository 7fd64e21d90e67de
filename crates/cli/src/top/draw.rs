//! The screen, from what is known and what the user has chosen. It reads no clock and no terminal.
//!
//! ```text
//! uxfrm 0.1.0  host mode  up 3 h                                     every 1 s
//! 3 tunnels: 1 down 2 up   in 1.2G b/s 103k p/s   out …   dropped 0/s
//!  1 Tunnels  2 Workers  3 Ports  4 Devices  5 Drops  6 Cache
//! HEALTH  PEER        NETS                          IN b/s  OUT b/s  …
//! …
//! ─ selected ────────────────────────────────────────────────────────────────
//! three lines about the selected row
//! q quit  ? help  s sort  / filter  space pause  r reverse  1-6 Tab view
//! ```

use ratatui::{
    buffer::Buffer,
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    symbols::border,
    text::{Line, Span},
    widgets::{
        Block, Borders, Paragraph, Row as RowWidget, Sparkline, StatefulWidget,
        Table as TableWidget, TableState, Widget as _, Wrap,
    },
};
use uxfrm_status::{
    gateway::GatewayStatus,
    quantity::{count, span, things},
};

use super::{
    controls::{Controls, Mode, Motion},
    model::{Connection, Model, Totals},
    table::{Align, SortDirection, Table, Tone},
    text::{escaped, short},
    view::View,
};

/// The smallest terminal.
pub(crate) const LEAST: (u16, u16) = (40, 10);
/// From this height on the selected row is explained.
const DETAILED: u16 = 16;
/// Lines of that, with their rule.
const DETAILS: u16 = 6;
/// From this height on rates are drawn over time.
const CHARTED: u16 = 30;
/// Lines of that.
const CHARTS: u16 = 3;

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Palette {
    /// Whether there are colours.
    pub(crate) colours: Colours,
    /// Which characters there are.
    pub(crate) characters: Characters,
}

/// Whether a terminal shows colours, and is asked to (`NO_COLOR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colours {
    Sixteen,
    None,
}

/// Characters of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Characters {
    Unicode,
    Ascii,
}

/// What is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'s> {
    pub(crate) model: &'s Model,
    pub(crate) controls: &'s Controls,
    /// The view's table, arranged.
    pub(crate) table: &'s Table,
    pub(crate) palette: Palette,
}

/// How much the line of totals says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wording {
    /// All of it.
    Full,
    /// Rates in bits alone.
    Short,
    /// The same without their unit, and without the number of tunnels.
    Least,
}

/// Rows of a table that fit on a screen of this height.
pub(crate) const fn page(height: u16) -> u16 {
    let mut chrome = 5;
    if height >= DETAILED {
        chrome += DETAILS;
    }
    if height >= CHARTED {
        chrome += CHARTS;
    }
    height.saturating_sub(chrome)
}

/// Draws all of it.
pub(crate) fn draw(scene: Scene<'_>, area: Rect, out: &mut Buffer) {
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let (width, height) = LEAST;
        let says = format!(
            "This terminal is too small: {}x{}, and {width}x{height} is the least. q quits.",
            area.width, area.height
        );
        return Paragraph::new(says).wrap(Wrap { trim: true }).render(area, out);
    }
    let lines = |wanted, least| if area.height >= least { wanted } else { 0 };
    let [head, chart, tabs, body, details, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(lines(CHARTS, CHARTED)),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(lines(DETAILS, DETAILED)),
        Constraint::Length(1),
    ])
    .areas(area);
    scene.head(head, out);
    scene.chart(chart, out);
    scene.tabs(tabs, out);
    match scene.controls.mode {
        Mode::Help => scene.help(body.union(details), out),
        Mode::Normal | Mode::Filter => {
            scene.body(body, out);
            scene.details(details, out);
        }
    }
    scene.foot(foot, out);
}

/// Draws the head and all rows, as far as the area goes: for text that is read from above.
pub(crate) fn list(scene: Scene<'_>, area: Rect, out: &mut Buffer) {
    let [head, body] = Layout::vertical([Constraint::Length(2), Constraint::Min(1)]).areas(area);
    scene.head(head, out);
    scene.body(body, out);
}

impl Palette {
    fn tone(self, tone: Tone) -> Style {
        let colour = |colour| match self.colours {
            Colours::Sixteen => Style::new().fg(colour),
            Colours::None => Style::new(),
        };
        match tone {
            Tone::Plain => Style::new(),
            Tone::Good => colour(Color::Green),
            Tone::Warn => colour(Color::Yellow),
            Tone::Bad => colour(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Dim => Style::new().add_modifier(Modifier::DIM),
        }
    }

    fn head(self) -> Style {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        match self.colours {
            Colours::Sixteen => bold.fg(Color::Cyan),
            Colours::None => bold,
        }
    }

    const fn arrow(self, direction: SortDirection) -> char {
        match (self.characters, direction) {
            (Characters::Unicode, SortDirection::Ascending) => '▲',
            (Characters::Unicode, SortDirection::Descending) => '▼',
            (Characters::Ascii, SortDirection::Ascending) => '^',
            (Characters::Ascii, SortDirection::Descending) => 'v',
        }
    }
}

impl Scene<'_> {
    /// Who the gateway is, whether it answers, and what passes.
    fn head(&self, area: Rect, out: &mut Buffer) {
        let [first, second] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
        let state = self.state();
        let [left, right] =
            Layout::horizontal([Constraint::Min(1), Constraint::Length(width(&state))])
                .areas(first);
        Line::from(self.identity()).render(left, out);
        Line::from(state).alignment(Alignment::Right).render(right, out);
        match &self.model.connection {
            Connection::Gone(reason) => {
                let says = format!("no gateway answers: {}; trying again", escaped(reason));
                Line::styled(says, self.palette.tone(Tone::Bad)).render(second, out);
            }
            Connection::Waiting | Connection::Live => self.totals(second, out),
        }
    }

    fn identity(&self) -> Vec<Span<'static>> {
        let name = |text: String| Span::styled(text, Style::new().add_modifier(Modifier::BOLD));
        let Some(interval) = self.model.interval() else {
            return vec![name("uxfrm top".to_owned())];
        };
        let gateway = &interval.now.status.gateway;
        let up = span(gateway.uptime_seconds);
        vec![
            name(escaped(&format!("uxfrm {}", gateway.version))),
            Span::raw(escaped(&format!("  {} mode  up {up}", gateway.mode))),
        ]
    }

    /// How new the figures are, in the corner.
    fn state(&self) -> Vec<Span<'static>> {
        let every = format!("every {} s", self.controls.interval().as_secs_f64());
        let one = |text: &str, tone| vec![Span::styled(text.to_owned(), self.palette.tone(tone))];
        match (&self.model.connection, self.controls.motion) {
            (Connection::Gone(_), _) => one("GONE", Tone::Bad),
            (Connection::Waiting, _) => one("asking", Tone::Dim),
            (Connection::Live, Motion::Paused) => one("PAUSED", Tone::Warn),
            (Connection::Live, Motion::Live) => one(&every, Tone::Dim),
        }
    }

    /// Tunnels by health and rates, as many of them as fit.
    fn totals(&self, area: Rect, out: &mut Buffer) {
        let Some(interval) = self.model.interval() else { return };
        let (status, totals) = (&interval.now.status, self.model.totals());
        let lines = [Wording::Full, Wording::Short, Wording::Least].map(|wording| {
            Line::from([self.tunnels(status, wording), self.rates(totals, wording)].concat())
        });
        let [.., least] = &lines;
        let fits = lines.iter().find(|line| line.width() <= area.width.into());
        fits.unwrap_or(least).render(area, out);
    }

    fn tunnels(&self, status: &GatewayStatus, wording: Wording) -> Vec<Span<'static>> {
        let totals = &status.totals;
        let parts = [
            (totals.down, "down", Tone::Bad),
            (totals.one_way, "one-way", Tone::Warn),
            (totals.idle, "idle", Tone::Dim),
            (totals.up, "up", Tone::Good),
        ];
        let parts = parts.into_iter().filter(|(number, ..)| *number > 0);
        let mut all = things(totals.tunnels, "tunnel", "tunnels");
        if totals.tunnels > 0 {
            all.push(':');
        }
        let held = status.plain.held;
        let mut spans = match wording {
            Wording::Full | Wording::Short => vec![Span::raw(all)],
            Wording::Least => Vec::new(),
        };
        for (number, word, tone) in parts {
            let text = format!(" {} {word}", count(number));
            spans.push(Span::styled(text, self.palette.tone(tone)));
        }
        if held > 0 {
            let text = format!("; {} held", things(held, "policy", "policies"));
            spans.push(Span::styled(text, self.palette.tone(Tone::Warn)));
        }
        spans
    }

    /// In, out, dropped.
    fn rates(&self, totals: Totals, wording: Wording) -> Vec<Span<'static>> {
        let way = |word: &str, rate: Option<(f64, f64)>| match (rate, wording) {
            (Some((bytes, packets)), Wording::Full) => {
                format!("  {word} {}b/s {}p/s", short(bytes * 8.0), short(packets))
            }
            (Some((bytes, _)), Wording::Short) => format!("  {word} {}b/s", short(bytes * 8.0)),
            (Some((bytes, _)), Wording::Least) => format!(" {word} {}", short(bytes * 8.0)),
            (None, _) => format!("  {word} -"),
        };
        let dropped = totals.dropped.map_or_else(|| "-".to_owned(), short);
        let tone = if totals.dropped > Some(0.0) { Tone::Bad } else { Tone::Plain };
        vec![
            Span::raw(way("in", totals.inbound)),
            Span::raw(way("out", totals.outbound)),
            Span::styled(format!("  drop {dropped}/s"), self.palette.tone(tone)),
        ]
    }

    /// Bits a second over time: in on the left, out on the right.
    fn chart(&self, area: Rect, out: &mut Buffer) {
        if area.height == 0 || self.palette.characters == Characters::Ascii {
            return;
        }
        let halves: [Rect; 2] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(1).areas(area);
        let ways: [(&str, Part, Tone); 2] = [
            ("in", |(inbound, _)| *inbound, Tone::Good),
            ("out", |(_, outbound)| *outbound, Tone::Warn),
        ];
        for (half, (word, part, tone)) in halves.into_iter().zip(ways) {
            let skip = self.model.history.len().saturating_sub(half.width.into());
            let data: Vec<_> = self.model.history.iter().skip(skip).map(part).collect();
            let most = data.iter().max().copied().unwrap_or_default();
            let style = self.palette.tone(tone);
            Sparkline::default().data(&data).style(style).render(half, out);
            let title = format!("{word}, at most {}b/s", short(most as f64));
            Line::styled(title, self.palette.tone(Tone::Dim)).render(half, out);
        }
    }

    /// The views by their digits; of narrow screens by digit and the shown one's name.
    fn tabs(&self, area: Rect, out: &mut Buffer) {
        let is_wide = area.width >= 64;
        let mut spans = Vec::new();
        for (digit, view) in (1..).zip(View::ALL) {
            let is_shown = view == self.controls.view;
            let text = match is_wide || is_shown {
                true => format!(" {digit} {} ", view.title()),
                false => format!(" {digit} "),
            };
            let style =
                if is_shown { Modifier::REVERSED | Modifier::BOLD } else { Modifier::empty() };
            spans.push(Span::styled(text, Style::new().add_modifier(style)));
        }
        Line::from(spans).render(area, out);
    }

    fn body(&self, area: Rect, out: &mut Buffer) {
        let columns = self.table.fit(area.width);
        let titles = columns.iter().map(|&(index, width)| {
            let column = self.table.columns[index];
            aligned(column.title, column.align, width)
        });
        let head = RowWidget::new(titles).style(self.palette.head());
        let rows = self.table.rows.iter().map(|row| {
            RowWidget::new(columns.iter().map(|&(index, width)| {
                let cell = &row.cells[index];
                let text = aligned(&cell.text, self.table.columns[index].align, width);
                text.style(self.palette.tone(cell.tone))
            }))
        });
        let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
        let table = TableWidget::new(rows, widths)
            .header(head)
            .column_spacing(1)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let selected = (!self.table.rows.is_empty()).then(|| self.controls.selected(self.table));
        let mut state = TableState::new().with_selected(selected);
        StatefulWidget::render(table, area, out, &mut state);
        self.mark_order(&columns, area, out);
        if self.table.rows.is_empty() {
            let below = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
            Line::styled(self.nothing(), self.palette.tone(Tone::Dim)).render(below, out);
        }
    }

    /// An arrow beside the title that rows are sorted by: in its column or in the gap to the next.
    fn mark_order(&self, columns: &[(usize, u16)], area: Rect, out: &mut Buffer) {
        let order = self.controls.order();
        let mut left = area.x;
        for &(index, width) in columns {
            if index == order.column {
                let column = self.table.columns[index];
                let title = u16::try_from(column.title.chars().count()).unwrap_or(width).min(width);
                let place = match column.align {
                    Align::Left => Some(left + title),
                    Align::Right => (left + width).checked_sub(title + 1),
                };
                let place = place.filter(|place| (area.x..area.right()).contains(place));
                if let Some(cell) = place.and_then(|place| out.cell_mut((place, area.y))) {
                    cell.set_char(self.palette.arrow(order.direction));
                    cell.set_style(self.palette.head());
                }
            }
            left += width + 1;
        }
    }

    fn nothing(&self) -> String {
        match (&self.model.connection, self.controls.filter.is_empty()) {
            _ if self.model.interval().is_some() && !self.controls.filter.is_empty() => {
                "nothing has these words (Esc shows all)".to_owned()
            }
            (Connection::Waiting, _) => "asking the gateway".to_owned(),
            (Connection::Gone(_), _) if self.model.interval().is_none() => {
                "waiting for a gateway in this network namespace".to_owned()
            }
            (Connection::Gone(_) | Connection::Live, _) => self.table.empty.to_owned(),
        }
    }

    /// What there is to say of the selected row.
    fn details(&self, area: Rect, out: &mut Buffer) {
        if area.height == 0 {
            return;
        }
        let place = self.controls.selected(self.table);
        let title = match self.table.rows.len() {
            0 => String::new(),
            rows => format!(" {} of {} ", count(place as u64 + 1), count(rows as u64)),
        };
        let set = match self.palette.characters {
            Characters::Unicode => border::PLAIN,
            Characters::Ascii => border::Set { horizontal_top: "-", ..border::PLAIN },
        };
        let block = Block::new().borders(Borders::TOP).border_set(set).title(title);
        let block = match &self.table.note {
            Some(note) => block.title(Line::from(format!(" {note} ")).right_aligned()),
            None => block,
        };
        let lines = self.table.rows.get(place).map(|row| row.detail.clone()).unwrap_or_default();
        let lines: Vec<_> = lines.into_iter().map(Line::from).collect();
        Paragraph::new(lines).wrap(Wrap { trim: true }).block(block).render(area, out);
    }

    fn foot(&self, area: Rect, out: &mut Buffer) {
        let filter = &self.controls.filter;
        let text = match (self.controls.mode, filter.is_empty()) {
            (Mode::Filter, _) => {
                format!("filter: {}_  (Enter keeps it, Esc clears it)", escaped(filter))
            }
            (Mode::Help, _) => "any key closes this".to_owned(),
            (Mode::Normal, false) => {
                format!("filter: {}  (/ changes it, Esc clears it)", escaped(filter))
            }
            (Mode::Normal, true) => hints(area.width),
        };
        Line::styled(text, self.palette.tone(Tone::Dim)).render(area, out);
    }

    fn help(&self, area: Rect, out: &mut Buffer) {
        let keys = HELP.iter().map(|(key, says)| {
            Line::from(vec![
                Span::styled(format!("{key:<16}"), self.palette.head()),
                Span::raw(*says),
            ])
        });
        Paragraph::new(keys.collect::<Vec<_>>()).render(area, out);
    }
}

const HELP: &[(&str, &str)] = &[
    ("1 to 6, Tab", "another view"),
    ("Up, Down, j, k", "another row; PgUp, PgDn, g, G"),
    ("s, S, <, >", "sort by the next column, or the one before"),
    ("r", "sort the other way round"),
    ("/", "show only rows with some words, or tunnels of an address"),
    ("space", "pause, go on"),
    ("+, -", "ask less often, more often"),
    ("Ctrl-L, Ctrl-Z", "draw anew, suspend"),
    ("q, F10, Ctrl-C", "quit"),
];

/// What the most used keys do, as many as fit.
fn hints(width: u16) -> String {
    const HINTS: [&str; 7] =
        ["q quit", "? help", "s sort", "/ filter", "space pause", "r reverse", "1-6 Tab view"];
    HINTS.iter().fold(String::new(), |text, hint| {
        match text.len() + 2 + hint.len() <= usize::from(width) {
            true if text.is_empty() => (*hint).to_owned(),
            true => format!("{text}  {hint}"),
            false => text,
        }
    })
}

/// One of the rates in and out.
type Part = fn(&(u64, u64)) -> u64;

fn width(spans: &[Span<'_>]) -> u16 {
    u16::try_from(spans.iter().map(Span::width).sum::<usize>()).unwrap_or(u16::MAX)
}

/// Text in its column; what is too long ends in `…` or `>`.
fn aligned(text: &str, align: Align, width: u16) -> Line<'static> {
    let alignment = match align {
        Align::Left => Alignment::Left,
        Align::Right => Alignment::Right,
    };
    let width = usize::from(width);
    let line = Line::from(text.to_owned());
    if line.width() <= width {
        return line.alignment(alignment);
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    Line::from(kept + "~").alignment(alignment)
}
