//! `tmpl ID [mode MODE] [reqid REQID] [level LEVEL]`.

use uxfrm_engine::{Family, Level, Mode, Reqid, Template};

use super::{
    cursor::{Cursor, Fault},
    id::{self, Id},
    keyword::{ID, LEVELS, MODES, TEMPLATE, TemplateWord, words_of},
};

/// A template whose family may still be that of the policy, which may come later in the line.
#[derive(Clone, Copy, Debug)]
pub(super) struct TemplateWords {
    id: Option<Id>,
    mode: Mode,
    reqid: Reqid,
    level: Level,
    /// The preferred one when it began.
    family: Option<Family>,
}

impl TemplateWords {
    /// The template; without addresses it has the policy's family (`net/xfrm/xfrm_user.c: validate_tmpl`).
    pub(super) fn template(
        self,
        cursor: &Cursor<'_, '_>,
        policy: Family,
    ) -> Result<Template, Fault> {
        let id = self.id.unwrap_or_default().full(cursor, self.family.or(Some(policy)))?;
        Ok(Template {
            source: id.source,
            destination: id.id.destination,
            protocol: id.id.protocol,
            spi: id.id.spi,
            mode: self.mode,
            reqid: self.reqid,
            level: self.level,
        })
    }
}

/// Behind `tmpl`: up to the first word that is no template's, or the second ID (`ip/xfrm_policy.c: xfrm_tmpl_parse`).
pub(super) fn parse(cursor: &mut Cursor<'_, '_>) -> Result<TemplateWords, Fault> {
    let mut template = TemplateWords {
        id: None,
        mode: Mode::Transport,
        reqid: Reqid::default(),
        level: Level::Required,
        family: cursor.family,
    };
    if !begins(cursor) {
        return Err(cursor.unknown(&words_of!(ID, TEMPLATE)));
    }
    loop {
        match cursor.keyword(&TEMPLATE) {
            Some(TemplateWord::Mode) => template.mode = cursor.abbreviated_choice(&MODES)?,
            Some(TemplateWord::Reqid) => template.reqid = Reqid(cursor.number()?),
            Some(TemplateWord::Level) => template.level = cursor.choice(&LEVELS)?,
            None if template.id.is_none() && id::begins(cursor) => {
                // A tunnel's ends may be of another family than what goes through it.
                cursor.family = None;
                let id = id::parse(cursor)?;
                id.protocol.ok_or_else(|| cursor.required("XFRM-PROTO"))?;
                cursor.family = id.ends.family;
                template.id = Some(id);
            }
            None => return Ok(template),
        }
    }
}

fn begins(cursor: &Cursor<'_, '_>) -> bool {
    id::begins(cursor) || cursor.peek().is_some_and(|word| TEMPLATE.exact(word.text()).is_some())
}
