"""The whole pipeline on a scripted cluster: every fault for which the contract has a rule."""
