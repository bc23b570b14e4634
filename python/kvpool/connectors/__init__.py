# SPDX-License-Identifier: Apache-2.0
"""What plugs kvpool into inference engines, a module for each; importing one imports its engine."""
