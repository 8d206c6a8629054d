//! The targets of a configuration: each as it is served, or everything that is wrong with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use front_iscsi::{Chap, PortalGroup, Prefix, Redirect};
use toml::Spanned;
use volume::config::{ConfigError, Node, NodeForm};

use super::{
    Config, LunEntry, TargetSection, access,
    luns::Luns,
    names::{by_number, check_target_name, lun_number},
};

/// A target as the daemon serves it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TargetTable {
    pub(crate) name: String,
    pub(crate) portal_groups: Vec<PortalGroup>,
    pub(crate) luns: BTreeMap<u32, LunEntry>,
    /// `None`: everyone.
    pub(crate) allow: Option<Vec<String>>,
    /// Empty: from anywhere.
    pub(crate) allow_from: Vec<Prefix>,
    pub(crate) chap: Option<Arc<Chap>>,
    pub(crate) redirect: Option<Redirect>,
}

impl Config {
    /// The targets, validated, with their secrets.
    pub(crate) fn targets(&self) -> Result<Vec<TargetTable>, ConfigError> {
        self.file
            .target
            .iter()
            .map(|(name, target)| self.target(name, target))
            .collect()
    }

    fn target(
        &self,
        name: &Spanned<String>,
        target: &TargetSection,
    ) -> Result<TargetTable, ConfigError> {
        check_target_name(name)?;
        Ok(TargetTable {
            name: name.get_ref().clone(),
            portal_groups: target.place().groups()?,
            luns: self
                .luns_of(name, target)
                .map_err(|mut errors| errors.swap_remove(0))?,
            allow: access::allow(&target.allow)?,
            allow_from: access::allow_from(target.allow_from.as_ref())?,
            chap: target.chap_settings().read(self.directory())?,
            redirect: target.place().redirect()?,
        })
    }

    /// Errors in a target.
    pub(super) fn target_errors(
        &self,
        name: &Spanned<String>,
        target: &TargetSection,
    ) -> Vec<ConfigError> {
        let mut errors = target.place().errors();
        errors.extend(check_target_name(name).err());
        errors.extend(self.luns_of(name, target).err().into_iter().flatten());
        errors.extend(access::allow_errors(&target.allow));
        let from = target.allow_from.iter();
        errors.extend(from.flat_map(access::allow_from_errors));
        errors.extend(target.chap_settings().read(self.directory()).err());
        // What is wrong with the portals does not keep it from being looked at.
        errors.extend(target.place().redirect().err());
        errors
    }

    /// The LUNs; empty if the target redirects initiators, in which case they are not asked for a secret either.
    pub(super) fn luns_of(
        &self,
        name: &Spanned<String>,
        target: &TargetSection,
    ) -> Result<BTreeMap<u32, LunEntry>, Vec<ConfigError>> {
        let shown = name.get_ref();
        let Some(redirect) = &target.redirect else {
            let Some(luns) = &target.luns else {
                let message = format!("target \"{shown}\" has no LUN; write luns = [\"NAME\"]");
                return Err(vec![ConfigError::new(name.span(), message)]);
            };
            return self.luns(shown, luns);
        };
        let chap = target.chap.as_ref().map(|_| "chap");
        let old = || target.old_chap.as_ref().map(|_| "old_chap");
        let chap = chap.or_else(old);
        let others = chap.or(target.mutual.as_ref().map(|_| "mutual"));
        match others.or(target.luns.as_ref().map(|_| "luns")) {
            None => Ok(BTreeMap::new()),
            Some(other) => {
                let message = format!(
                    "target \"{shown}\" redirects its initiators and serves nothing itself; remove \
                     {other}, or redirect"
                );
                Err(vec![ConfigError::new(redirect.span(), message)])
            }
        }
    }

    fn luns(
        &self,
        target: &str,
        luns: &Spanned<Luns>,
    ) -> Result<BTreeMap<u32, LunEntry>, Vec<ConfigError>> {
        let numbered: Vec<(u32, &Spanned<LunEntry>)> = match luns.get_ref() {
            Luns::List(names) => (0..).zip(names).collect(),
            Luns::Table(table) => {
                by_number(table, "LUN", lun_number).map_err(|error| vec![error])?
            }
        };
        if numbered.is_empty() {
            let message = format!("target \"{target}\" has no LUN; write luns = [\"NAME\"]");
            return Err(vec![ConfigError::new(luns.span(), message)]);
        }
        let mut errors = Vec::new();
        let mut served = BTreeSet::new();
        for (number, lun) in &numbered {
            let name = &lun.get_ref().volume;
            let node = Node {
                span: lun.span(),
                what: NodeForm::Named(name.clone()),
            };
            if let Err(error) = self.file.volume.find(name, &node) {
                let message = format!("LUN {number} of \"{target}\": {}", error.message());
                errors.push(ConfigError::new(lun.span(), message));
            } else if !served.insert(name) {
                let message = format!("target \"{target}\" serves \"{name}\" twice; name it once");
                errors.push(ConfigError::new(lun.span(), message));
            }
        }
        match errors.is_empty() {
            true => Ok(numbered
                .into_iter()
                .map(|(n, lun)| (n, lun.get_ref().clone()))
                .collect()),
            false => Err(errors),
        }
    }
}
