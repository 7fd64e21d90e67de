//! What the sources define: types and their members, by their syntax.
#![expect(clippy::wildcard_enum_match_arm, reason = "the enums are of syn, which adds to them")]

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// Capitalized names in comments that are not Rust: counters of `/proc/net/snmp`.
const FOREIGN: &[&str] = &["FragFails", "InHdrErrors", "InNoRoutes", "OutNoRoutes"];

/// What the sources define and say.
#[derive(Default)]
pub(crate) struct Code {
    /// By type or trait: fields, variants, methods, constants.
    pub(crate) members: BTreeMap<String, BTreeSet<String>>,
    /// By type: the traits that it implements, and the types of which it is an alias.
    inherits: BTreeMap<String, BTreeSet<String>>,
    /// Aliases and their types.
    aliases: Vec<(String, String)>,
    /// Bodies of `macro_rules!`, by name.
    macros: BTreeMap<String, BTreeSet<String>>,
    /// Macros called in place of items: name and words.
    calls: Vec<(String, BTreeSet<String>)>,
    /// All words outside of comments.
    words: BTreeSet<String>,
}

impl Code {
    pub(crate) fn of(sources: impl IntoIterator<Item = String>) -> Self {
        let mut code = Self::default();
        for source in sources {
            collect_words(source.parse().expect("the source compiles"), &mut code.words);
            code.visit_file(&syn::parse_file(&source).expect("the source compiles"));
        }
        for (name, mut words) in std::mem::take(&mut code.calls) {
            words.extend(code.macros.get(&name).into_iter().flatten().cloned());
            for word in words.iter().filter(|word| is_type_name(word)) {
                code.members.entry(word.clone()).or_default().extend(words.iter().cloned());
            }
        }
        for (name, of) in std::mem::take(&mut code.aliases) {
            if code.members.contains_key(&of) {
                code.add(&name, []);
                code.inherit(&name, [of]);
            }
        }
        code
    }

    /// Whether a path names a type that no source says, or a member that its type does not have.
    pub(crate) fn lacks(&self, span: &str) -> bool {
        let is_path = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
        let path = span.trim_end_matches("()");
        if !path.chars().all(is_path) {
            return false;
        }
        let mut parts = path.split("::").skip_while(|part| !is_type_name(part));
        let Some(name) = parts.next().filter(|name| !FOREIGN.contains(name)) else { return false };
        if !self.words.contains(name) {
            return true;
        }
        parts
            .next()
            .is_some_and(|member| self.members.contains_key(name) && !self.has(name, member))
    }

    fn has(&self, name: &str, member: &str) -> bool {
        self.members.get(name).is_some_and(|members| members.contains(member))
            || self.inherits.get(name).into_iter().flatten().any(|base| match base.as_str() {
                "Clone" => member == "clone",
                "Default" => member == "default",
                base => base != name && self.has(base, member),
            })
    }

    fn add(&mut self, name: &str, members: impl IntoIterator<Item = String>) {
        self.members.entry(name.to_owned()).or_default().extend(members);
    }

    fn inherit(&mut self, name: &str, bases: impl IntoIterator<Item = String>) {
        self.inherits.entry(name.to_owned()).or_default().extend(bases);
    }

    fn add_derives(&mut self, name: &str, attributes: &[syn::Attribute]) {
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("derive")) {
            if let Ok(list) = attribute.meta.require_list() {
                self.inherit(name, words_of(list.tokens.clone()));
            }
        }
    }
}

impl<'ast> Visit<'ast> for Code {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let name = item.ident.to_string();
        self.add_derives(&name, &item.attrs);
        self.add(
            &name,
            item.fields.iter().filter_map(|field| Some(field.ident.as_ref()?.to_string())),
        );
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        let name = item.ident.to_string();
        self.add_derives(&name, &item.attrs);
        self.add(&name, item.variants.iter().map(|variant| variant.ident.to_string()));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let members = item.items.iter().filter_map(|member| match member {
            syn::TraitItem::Fn(item) => Some(item.sig.ident.to_string()),
            syn::TraitItem::Const(item) => Some(item.ident.to_string()),
            syn::TraitItem::Type(item) => Some(item.ident.to_string()),
            _ => None,
        });
        self.add(&item.ident.to_string(), members);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(name) = type_name(&item.self_ty) {
            let members = item.items.iter().filter_map(|member| match member {
                syn::ImplItem::Fn(item) => Some(item.sig.ident.to_string()),
                syn::ImplItem::Const(item) => Some(item.ident.to_string()),
                syn::ImplItem::Type(item) => Some(item.ident.to_string()),
                _ => None,
            });
            // An impl alone makes no type of ours: `impl Trait for Vec<u8>`.
            self.inherit(&name, [format!("impl {name}")]);
            self.add(&format!("impl {name}"), members);
            let base = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
            self.inherit(&name, base.map(|segment| segment.ident.to_string()));
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.aliases.extend(type_name(&item.ty).map(|of| (item.ident.to_string(), of)));
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        let words = words_of(item.mac.tokens.clone());
        match &item.ident {
            Some(name) => drop(self.macros.insert(name.to_string(), words)),
            None => {
                let name = item.mac.path.segments.last().map(|segment| segment.ident.to_string());
                self.calls.push((name.unwrap_or_default(), words));
            }
        }
    }
}

fn type_name(of: &syn::Type) -> Option<String> {
    match of {
        syn::Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        _ => None,
    }
}

/// `Sa`, not `SA` or `sa`: constants and the kernel's names look otherwise.
fn is_type_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.contains(|c: char| c.is_ascii_lowercase())
        && !word.contains('_')
        && word != "Self"
}

fn words_of(tokens: TokenStream) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    collect_words(tokens, &mut words);
    words
}

/// Identifiers, and the words of literals that are no documentation.
fn collect_words(tokens: TokenStream, words: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(word) => drop(words.insert(word.to_string())),
            TokenTree::Group(group) if is_doc(&group) => {}
            TokenTree::Group(group) => collect_words(group.stream(), words),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                words.extend(
                    text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned),
                );
            }
            TokenTree::Punct(_) => {}
        }
    }
}

fn is_doc(group: &proc_macro2::Group) -> bool {
    let first = group.stream().into_iter().next();
    group.delimiter() == Delimiter::Bracket
        && matches!(first, Some(TokenTree::Ident(word)) if word == "doc")
}
