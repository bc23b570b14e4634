# SPDX-License-Identifier: Apache-2.0
# Completion of kvctl for bash.
_kvctl()
{
	local cur=${COMP_WORDS[COMP_CWORD]} word command= options
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		case $word in
		-*) ;;
		*) command=$word && break ;;
		esac
	done
	case $command in
	'') options="--socket --timeout --json --help --version status clients spaces tenants blocks
		inspect pin unpin evict drain check doctor version" ;;
	status) options="--watch --count --json" ;;
	blocks) options="--tenant --space --state --pinned --sort --limit --json" ;;
	evict) options="--tenant --count --all --json" ;;
	check) options="--tenant --payloads --json" ;;
	clients | spaces | tenants | inspect | pin | unpin | drain) options="--tenant --json" ;;
	*) options="--json" ;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
}
complete -F _kvctl kvctl
