//! What the user has chosen, and what each key changes of it.
#![expect(clippy::wildcard_enum_match_arm, reason = "keys are crossterm's, and few mean anything")]

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use uxfrm_status::gateway::PeerFilter;

use super::{
    source::Question,
    table::{Order, Table},
    view::View,
};

/// The most characters of a filter.
const LONGEST_FILTER: usize = 64;

/// From one question to the next: what `+` and `-` choose from, in tenths of a second.
const INTERVALS: [u64; 7] = [2, 5, 10, 20, 50, 100, 300];

/// What a key asks for beyond what it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Nothing.
    None,
    /// The whole screen anew.
    Redraw,
    /// To be stopped as by the shell's Ctrl-Z.
    Suspend,
    /// The end.
    Quit,
}

/// What keys mean now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Normal,
    /// A filter is typed.
    Filter,
    /// The keys are explained.
    Help,
}

/// Whether new samples are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Motion {
    #[default]
    Live,
    Paused,
}

/// What the user has chosen.
#[derive(Clone, Debug)]
pub(crate) struct Controls {
    pub(crate) view: View,
    pub(crate) mode: Mode,
    pub(crate) motion: Motion,
    pub(crate) filter: String,
    orders: [Order; View::ALL.len()],
    /// The selected row of each view, by its key.
    selected: [Option<String>; View::ALL.len()],
    interval: usize,
}

impl Controls {
    /// A view as it is at first, with a filter.
    pub(crate) fn new(view: View, filter: String, interval: Duration) -> Self {
        let tenths = u64::try_from(interval.as_millis() / 100).unwrap_or(u64::MAX);
        let interval = INTERVALS.iter().position(|one| *one >= tenths);
        Self {
            view,
            mode: Mode::Normal,
            motion: Motion::Live,
            filter,
            orders: View::ALL.map(View::order),
            selected: Default::default(),
            interval: interval.unwrap_or(INTERVALS.len() - 1),
        }
    }

    /// How the view is sorted.
    pub(crate) fn order(&self) -> Order {
        self.orders[self.view.place()]
    }

    /// Sorts the view.
    pub(crate) fn sort(&mut self, order: Order) {
        self.orders[self.view.place()] = order;
    }

    /// From one question to the next.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_millis(INTERVALS[self.interval] * 100)
    }

    /// What to ask the gateway.
    pub(crate) fn question(&self) -> Question {
        Question { peer: self.peer(), interval: self.interval() }
    }

    /// The filter where it is an address or prefix: the gateway then looks through all tunnels.
    fn peer(&self) -> Option<PeerFilter> {
        self.filter.parse().ok()
    }

    /// The table as it is shown: sorted and filtered.
    pub(crate) fn arrange(&self, mut table: Table) -> Table {
        let is_by_gateway = self.view == View::Tunnels && self.peer().is_some();
        if !is_by_gateway {
            table.filter(&self.filter);
        }
        table.sort(self.order());
        table
    }

    /// The index of the selected row: the first where that is gone.
    pub(crate) fn selected(&self, table: &Table) -> usize {
        let key = self.selected[self.view.place()].as_ref();
        let place = key.and_then(|key| table.rows.iter().position(|row| row.key == *key));
        place.unwrap_or_default()
    }

    /// Follows a key; `table` is what is shown, and `page` its rows on the screen.
    pub(crate) fn press(&mut self, key: KeyEvent, table: &Table, page: usize) -> Request {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Request::Quit,
                KeyCode::Char('z') => return Request::Suspend,
                KeyCode::Char('l') => return Request::Redraw,
                _other => return Request::None,
            }
        }
        match self.mode {
            Mode::Normal => self.press_normal(key.code, table, page),
            Mode::Filter => {
                self.press_in_filter(key.code);
                Request::None
            }
            Mode::Help => {
                self.mode = Mode::Normal;
                Request::None
            }
        }
    }

    fn press_normal(&mut self, key: KeyCode, table: &Table, page: usize) -> Request {
        match key {
            KeyCode::Char('q' | 'Q') | KeyCode::F(10) => return Request::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char('/') | KeyCode::F(3 | 4) => self.mode = Mode::Filter,
            KeyCode::Char(' ') => self.motion = self.motion.toggled(),
            KeyCode::Char('+' | '=') => self.change_interval(self.interval + 1),
            KeyCode::Char('-') => self.change_interval(self.interval.saturating_sub(1)),
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Tab => self.view = self.view.next(),
            KeyCode::BackTab => self.view = self.view.previous(),
            KeyCode::Char(digit @ '1'..='6') => {
                let place = digit.to_digit(10).map_or(0, |digit| digit as usize - 1);
                self.view = View::ALL[place];
            }
            KeyCode::Char('s' | '>') | KeyCode::Right | KeyCode::F(6) => self.sort_by_next(1),
            KeyCode::Char('S' | '<') | KeyCode::Left => {
                self.sort_by_next(self.view.columns().len() - 1);
            }
            KeyCode::Char('r' | 'R' | 'I') => self.sort(self.order().reversed()),
            other => self.select(other, table, page),
        }
        Request::None
    }

    fn press_in_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.mode = Mode::Normal,
            KeyCode::Esc => {
                self.mode = Mode::Normal;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(char) if self.filter.chars().count() < LONGEST_FILTER => {
                self.filter.push(char);
            }
            _other => {}
        }
    }

    fn change_interval(&mut self, interval: usize) {
        self.interval = interval.min(INTERVALS.len() - 1);
    }

    /// Numbers are first looked at from the highest, names from the lowest.
    fn sort_by_next(&mut self, step: usize) {
        let columns = self.view.columns();
        let column = (self.order().column + step) % columns.len();
        let is_name = columns[column].align == super::table::Align::Left;
        self.sort(if is_name { Order::ascending(column) } else { Order::descending(column) });
    }

    fn select(&mut self, key: KeyCode, table: &Table, page: usize) {
        let Some(last) = table.rows.len().checked_sub(1) else { return };
        let now = self.selected(table);
        let place = match key {
            KeyCode::Down | KeyCode::Char('j') => now + 1,
            KeyCode::Up | KeyCode::Char('k') => now.saturating_sub(1),
            KeyCode::PageDown => now + page,
            KeyCode::PageUp => now.saturating_sub(page),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _other => return,
        };
        self.selected[self.view.place()] = Some(table.rows[place.min(last)].key.clone());
    }
}

impl Motion {
    const fn toggled(self) -> Self {
        match self {
            Self::Live => Self::Paused,
            Self::Paused => Self::Live,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{fixture, sample::Interval, table::SortDirection};
    use super::*;

    fn table(view: View) -> Table {
        let (before, now) = fixture::pair();
        view.table(Interval { now: &now, before: Some(&before) })
    }

    fn press(controls: &mut Controls, keys: &str) -> Request {
        let table = controls.arrange(table(controls.view));
        keys.chars().fold(Request::None, |_, char| {
            let code = match char {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '\x1b' => KeyCode::Esc,
                '\x08' => KeyCode::Backspace,
                char => KeyCode::Char(char),
            };
            controls.press(KeyEvent::new(code, KeyModifiers::NONE), &table, 5)
        })
    }

    fn controls() -> Controls {
        Controls::new(View::Tunnels, String::new(), Duration::from_secs(1))
    }

    #[test]
    fn keys_of_top_and_htop_do_what_they_do_there() {
        let mut controls = controls();
        assert_eq!(press(&mut controls, "2"), Request::None);
        assert_eq!(controls.view, View::Workers);
        press(&mut controls, "\t");
        assert_eq!(controls.view, View::Ports);
        press(&mut controls, "ss");
        assert_eq!(controls.order(), Order::descending(2));
        press(&mut controls, "r");
        assert_eq!(controls.order().direction, SortDirection::Ascending);
        press(&mut controls, "S<");
        assert_eq!(controls.order(), Order::ascending(0));
        press(&mut controls, "+");
        assert_eq!(controls.interval(), Duration::from_secs(2));
        press(&mut controls, " ");
        assert_eq!(controls.motion, Motion::Paused);
        press(&mut controls, "?");
        assert_eq!(controls.mode, Mode::Help);
        assert_eq!(press(&mut controls, "q"), Request::None, "any key closes the help");
        assert_eq!((controls.mode, controls.view), (Mode::Normal, View::Ports));
        assert_eq!(press(&mut controls, "q"), Request::Quit);
        let end = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(controls.press(end, &table(View::Ports), 1), Request::Quit);
    }

    #[test]
    fn a_filter_is_typed_and_an_address_is_the_gateways_to_look_for() {
        let mut controls = controls();
        press(&mut controls, "/do q");
        assert_eq!((controls.filter.as_str(), controls.mode), ("do q", Mode::Filter));
        press(&mut controls, "\x08\x08wn\n");
        assert_eq!(controls.question().peer, None);
        assert_eq!(controls.arrange(table(View::Tunnels)).rows.len(), 1, "the one that is down");
        press(&mut controls, "\x1b");
        assert_eq!(controls.filter, "");
        press(&mut controls, "/192.0.2.0/24\n");
        assert_eq!(controls.question().peer.unwrap().to_string(), "192.0.2.0/24");
        assert_eq!(controls.arrange(table(View::Tunnels)).rows.len(), 3, "the gateway filters");
    }

    #[test]
    fn the_selected_row_is_followed_wherever_it_goes() {
        let mut controls = controls();
        let selected = |controls: &Controls| {
            let table = controls.arrange(table(controls.view));
            table.rows[controls.selected(&table)].key.clone()
        };
        press(&mut controls, "jjjj");
        let last = selected(&controls);
        press(&mut controls, "r");
        assert_eq!(selected(&controls), last);
        let table_now = controls.arrange(table(controls.view));
        assert_eq!(controls.selected(&table_now), 0, "it is the first now");
        press(&mut controls, "G");
        assert_ne!(selected(&controls), last);
        press(&mut controls, "g");
        assert_eq!(selected(&controls), last);
    }
}
