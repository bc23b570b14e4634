# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion for bash of kvctl, kvpoold, kvrun, kvreplay and kvbench. Commands, options and words are
# read from the programs' own --help, so that this file knows none of them.

# Words of a help text's first column: its commands.
_kvpool_commands()
{
	"$1" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p'
}

# What stands for the value of option $2 in the help text $1: NAME, a|b|c, ... or nothing.
_kvpool_value()
{
	local all
	all=$(grep -oE -- "$2\[?[ =][][A-Za-z0-9_.,|-]+" <<<"$1" | sed 's/^[^ =]*[ =]//')
	grep -m 1 -F '|' <<<"$all" || head -n 1 <<<"$all"
}

_kvpool_sockets()
{
	local path
	{
		compgen -f -- "$1"
		compgen -G "${1:-/run/kvpool/}*.sock"
	} | sort -u | while IFS= read -r path; do
		if [ -S "$path" ] || [ -d "$path" ]; then
			printf '%s\n' "$path"
		fi
	done
}

# Asks the daemon; says nothing if there is none, or if it does not answer soon.
_kvpool_ask()
{
	local at socket=()
	for ((at = 1; at < ${#COMP_WORDS[@]} - 1; at++)); do
		[ "${COMP_WORDS[at]}" = --socket ] && socket=(--socket "${COMP_WORDS[at + 1]}")
	done
	"$program" "${socket[@]}" --timeout 1 --json "$@" 2>/dev/null
}

_kvpool_value_words()
{
	local option=$1 value
	value=$(_kvpool_value "$help" "$option")
	case $option,$value in
	--socket,* | *,SOCKET*) _kvpool_sockets "$cur" ;;
	--tenant,*) _kvpool_ask tenants | grep -o '"name":"[^"]*"' | cut -d '"' -f 4 ;;
	*,PATH* | *,FILE* | *,DIR*) compgen -f -- "$cur" ;;
	esac
	case $value in
	*\|*) tr '|' '\n' <<<"$value" | grep '^[a-z0-9]' ;;
	esac
}

_kvpool_keys()
{
	local pinned=()
	[ "$1" = unpin ] && pinned=(--pinned)
	_kvpool_ask blocks "${pinned[@]}" | grep -o '"key":"[0-9a-f]*"' | cut -d '"' -f 4
}

# Of "usage: kvctl COMMAND [OPTION]... a|b|c [NAME]" in $1: the words, and after one of them names of devices.
_kvpool_actions()
{
	local actions word
	actions=$(grep -oE '[a-z]+(\|[a-z]+)+ \[NAME\]$' <<<"${1%%$'\n'*}" | sed 's/ .*//')
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		if tr '|' '\n' <<<"$actions" | grep -qxF -- "$word"; then
			[ "$word" = list ] ||
				_kvpool_ask device list | grep -o '"name":"[^"]*"' | cut -d '"' -f 4
			return
		fi
	done
	tr '|' '\n' <<<"$actions"
}

_kvpool()
{
	local program=${COMP_WORDS[0]/#\~/$HOME} cur=${COMP_WORDS[COMP_CWORD]} prev='' command='' help word
	local commands words
	[ "$COMP_CWORD" -gt 1 ] && prev=${COMP_WORDS[COMP_CWORD - 1]}
	# --option=value comes in three words.
	if [ "$cur" = = ]; then
		cur=
	elif [ "$prev" = = ]; then
		prev=${COMP_WORDS[COMP_CWORD - 2]}
	fi
	commands=$(_kvpool_commands "$program")
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		if grep -qxF -- "$word" <<<"$commands"; then
			command=$word
			break
		fi
	done
	help=$("$program" ${command:+"$command"} --help 2>/dev/null)
	if [[ $prev == --* && -n $(_kvpool_value "$help" "$prev") && ($help != *"${prev}["* ||
		${COMP_WORDS[COMP_CWORD]} == = || ${COMP_WORDS[COMP_CWORD - 1]} == =) ]]; then
		words=$(_kvpool_value_words "$prev")
	elif [[ $cur == -* || -z $commands ]]; then
		words=$(grep -oE -- '--[a-z][a-z0-9-]*' <<<"$help" | sort -u)
	elif [ -z "$command" ]; then
		words=$commands
	elif [[ ${help%%$'\n'*} == *KEY* ]]; then
		words=$(_kvpool_keys "$command")
	elif [[ ${help%%$'\n'*} == *"[NAME]" ]]; then
		words=$(_kvpool_actions "$help")
	else
		words=$(grep -oE -- '--[a-z][a-z0-9-]*' <<<"$help" | sort -u)
	fi
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
	compopt -o filenames 2>/dev/null
}
complete -F _kvpool kvctl kvpoold kvrun kvreplay kvbench
